"""Lists of quests. A single filter is read in the order of its index; several are applied to a bounded part of one.

A quest whose time has come is listed as EXPIRED, before anybody has made it so.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import ColumnElement, Select, and_, exists, func, or_, select, true, tuple_, union_all

from analytics.quests.states import EXPIRING, Status
from analytics.quests.tables import Attestation, Quest, QuestTag
from tenants.db import Tx
from tenants.users import User

# Of one list, that are looked at for an answer when there is another filter: there may be fewer in it.
MAX_SCANNED = 5_000

Position = tuple[datetime, UUID]
# By which a list is ordered, and the quest.
Rows = Select[Any, Any]


@dataclass(frozen=True)
class Filter:
    """What is asked for; nothing: all. `to_attest_by`: what this user may attest."""

    status: Status | None = None
    tag: str | None = None
    creator_id: UUID | None = None
    performer_id: UUID | None = None
    to_attest_by: UUID | None = None


class Listed(NamedTuple):
    """The quests of an answer, newest first (those of a performer by their last change), and where they continue."""

    quests: Sequence[Quest]
    next: Position | None


def read(tx: Tx, wanted: Filter, *, after: Position | None, limit: int, now: datetime) -> Listed:
    ids, more, end = _positions(tx, wanted, after=after, limit=limit, now=now)
    found = {quest.id: quest for quest in tx.scalars(select(Quest).where(Quest.id.in_(ids)))}
    return Listed([found[quest_id] for quest_id in ids if quest_id in found], end if more else None)


def shown_status(quest: Quest, *, now: datetime) -> Status:
    """Its status, or EXPIRED if its time has come."""
    is_past = quest.status in EXPIRING and quest.expires_at is not None and quest.expires_at <= now
    return Status.EXPIRED if is_past else Status(quest.status)


def _positions(
    tx: Tx, wanted: Filter, *, after: Position | None, limit: int, now: datetime
) -> tuple[list[UUID], bool, Position | None]:
    """The ids of the quests to show; whether there may be more; and the position of the last that was looked at."""
    lists, filters = _plan(wanted, now)
    if not filters:
        rows = tx.execute(_part(lists, after=after, limit=limit + 1)).all()
        shown = rows[:limit]
        return [row.id for row in shown], len(rows) > limit, _position(shown)
    part = _part(lists, after=after, limit=MAX_SCANNED).subquery("part")
    matching = select(part.c.at, part.c.id).join(Quest, Quest.id == part.c.id).where(*filters)
    rows = tx.execute(matching.order_by(part.c.at.desc(), part.c.id.desc()).limit(limit + 1)).all()
    if len(rows) > limit:
        return [row.id for row in rows[:limit]], True, _position(rows[:limit])
    scanned = tx.execute(
        select(func.count().over(), part.c.at, part.c.id).order_by(part.c.at, part.c.id).limit(1)
    ).all()
    has_more = bool(scanned) and scanned[0][0] == MAX_SCANNED
    return [row.id for row in rows], has_more, (scanned[0].at, scanned[0].id) if scanned else None


def _position(rows: Sequence[Any]) -> Position | None:
    return (rows[-1].at, rows[-1].id) if rows else None


def _part(lists: Sequence[Rows], *, after: Position | None, limit: int) -> Rows:
    """The next rows of these lists together, each read in the order of its index."""
    parts = [_limited(one, after=after, limit=limit) for one in lists]
    if len(parts) == 1:
        return parts[0]
    both = union_all(*(select(part.subquery()) for part in parts)).subquery()
    return select(both.c.at, both.c.id).order_by(both.c.at.desc(), both.c.id.desc()).limit(limit)


def _limited(rows: Rows, *, after: Position | None, limit: int) -> Rows:
    at, key = rows.selected_columns[0], rows.selected_columns[1]
    if after is not None:
        rows = rows.where(tuple_(at, key) < after)
    return rows.order_by(at.desc(), key.desc()).limit(limit)


def _plan(wanted: Filter, now: datetime) -> tuple[Sequence[Rows], list[ColumnElement[bool]]]:
    """The lists that are read in the order of their index (the first that is asked for), and what filters them."""
    asked: list[tuple[Sequence[Rows], ColumnElement[bool]]] = []
    if wanted.performer_id is not None:
        is_performer = Quest.performer_id == wanted.performer_id
        asked.append(([select(Quest.updated_at.label("at"), Quest.id).where(is_performer)], is_performer))
    if wanted.creator_id is not None:
        is_creator = Quest.creator_id == wanted.creator_id
        asked.append(([_newest(is_creator)], is_creator))
    if wanted.tag is not None:
        tagged = select(QuestTag.created_at.label("at"), QuestTag.quest_id.label("id")).where(
            QuestTag.tag == wanted.tag
        )
        asked.append(([tagged], exists().where(QuestTag.quest_id == Quest.id, QuestTag.tag == wanted.tag)))
    if wanted.status is not None:
        asked.append((_with_status(wanted.status, now), _has(wanted.status, now)))
    if not asked:
        asked.append(([_newest()] if wanted.to_attest_by is None else _with_status(Status.PENDING_REVIEW, now), true()))
    filters = [criterion for _, criterion in asked[1:]]
    if wanted.to_attest_by is not None:
        filters.append(_to_attest(wanted.to_attest_by, now))
    return asked[0][0], filters


def _newest(*criteria: ColumnElement[bool]) -> Rows:
    return select(Quest.created_at.label("at"), Quest.id).where(*criteria)


def _is_past(now: datetime) -> ColumnElement[bool]:
    return and_(Quest.status.in_(EXPIRING), Quest.expires_at.is_not(None), Quest.expires_at <= now)


def _is_not_past(now: datetime) -> ColumnElement[bool]:
    return or_(Quest.expires_at.is_(None), Quest.expires_at > now)


def _has(status: Status, now: datetime) -> ColumnElement[bool]:
    if status is Status.EXPIRED:
        return or_(Quest.status == status.value, _is_past(now))
    is_now = Quest.status == status.value
    return and_(is_now, _is_not_past(now)) if status in EXPIRING else is_now


def _with_status(status: Status, now: datetime) -> Sequence[Rows]:
    if status is not Status.EXPIRED:
        return [_newest(_has(status, now))]
    return [_newest(Quest.status == status.value), _newest(_is_past(now))]


def _to_attest(user_id: UUID, now: datetime) -> ColumnElement[bool]:
    """Submitted work of others that this user has not attested in its round."""
    attested = exists().where(
        Attestation.quest_id == Quest.id, Attestation.round == Quest.round, Attestation.attester_id == user_id
    )
    is_suspended = and_(User.suspended_at.is_not(None), or_(User.suspended_until.is_(None), User.suspended_until > now))
    suspended = exists().where(User.id == Quest.performer_id, is_suspended)
    is_others = and_(Quest.status == Status.PENDING_REVIEW.value, Quest.performer_id != user_id)
    return and_(is_others, ~attested, ~suspended)
