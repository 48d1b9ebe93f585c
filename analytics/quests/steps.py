"""The steps of a quest: each is one conditional statement on its state and version (`analytics.quests.states`).

A step reads the quest, locks the people whom it counts or pays (by ascending id, before the quest, as the group commit
does), decides, and changes the quest only if it is as it was read. If it is not, the quest is read again under a lock.
The moment that counts is the statement's own (`statement_timestamp()`), not the request's.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import func, or_, select, text, update

from analytics.quests import history, people, rewards, rings
from analytics.quests.people import (
    ANY_VERSION,
    AlreadyWitnessed,
    Contended,
    Expected,
    LockedPerson,
    PerformerSuspended,
    Person,
    QuestNotFound,
    RuleBroken,
)
from analytics.quests.states import EXPIRING, Status, Step
from analytics.quests.tables import CHANGED_AT, Quest
from analytics.scores.actions import UserSuspended, midnight
from tenants.db import Tx
from tenants.errors import Invalid
from tenants.settings import Quests

_NOW = func.statement_timestamp()
_CHANGED_AT = text(CHANGED_AT.replace("q.", "quests."))
_OPENED = {"performer_id": None, "claimed_at": None, "submitted_at": None, "submission": None}


@dataclass(frozen=True)
class Change:
    """What a step does to the quest, and what follows in the same transaction."""

    to: Status
    values: Mapping[str, Any] = field(default_factory=dict)
    reason: str | None = None
    # What the quest has no longer, and only its history has.
    leaves: Sequence[str] = ()
    then: Callable[[Quest], None] = lambda _: None


# Decides what a step does, or raises: the quest, and the people who are locked.
Decide = Callable[[Quest, Mapping[UUID, LockedPerson]], Change]


def find(tx: Tx, quest_id: UUID) -> Quest:
    quest, _ = _read(tx, quest_id, lock=False)
    return quest


def claim(tx: Tx, quest_id: UUID, person: Person, settings: Quests, expected: Expected = ANY_VERSION) -> Quest:
    user_id = person.require_user()

    def decide(_quest: Quest, _people: Mapping[UUID, LockedPerson]) -> Change:
        _require_room_for_claim(tx, user_id, settings)
        return Change(Status.CLAIMED, {"performer_id": user_id, "claimed_at": _NOW})

    return _take(tx, quest_id, Step.CLAIM, person, expected, decide)


def release(
    tx: Tx, quest_id: UUID, person: Person, *, reason: str | None = None, expected: Expected = ANY_VERSION
) -> Quest:
    opened = {name: _OPENED[name] for name in ("performer_id", "claimed_at")}
    change = Change(Status.OPEN, opened, reason=reason, leaves=["performer_id"])
    return _take(tx, quest_id, Step.RELEASE, person, expected, lambda *_: change)


def submit(tx: Tx, quest_id: UUID, person: Person, submission: str, expected: Expected = ANY_VERSION) -> Quest:
    change = Change(Status.PENDING_REVIEW, {"submission": submission, "submitted_at": _NOW})
    return _take(tx, quest_id, Step.SUBMIT, person, expected, lambda *_: change)


def withdraw(tx: Tx, quest_id: UUID, person: Person, settings: Quests, expected: Expected = ANY_VERSION) -> Quest:
    """The submission goes to the history: the performer may submit another. It counts as a new claim."""

    def require_unattested(quest: Quest, _people: Mapping[UUID, LockedPerson]) -> None:
        if _verdict(tx, quest).ratings:
            raise AlreadyWitnessed

    def decide(quest: Quest, _people: Mapping[UUID, LockedPerson]) -> Change:
        _require_room_for_claim(tx, _performer_of(quest), settings)
        claimed_again = {"submission": None, "submitted_at": None, "claimed_at": _NOW}
        return Change(Status.CLAIMED, claimed_again, leaves=["submission"])

    return _take(tx, quest_id, Step.WITHDRAW, person, expected, decide, require=require_unattested)


def dispute(tx: Tx, quest_id: UUID, person: Person, reason: str, expected: Expected = ANY_VERSION) -> Quest:
    change = Change(Status.DISPUTED, reason=reason)
    return _take(tx, quest_id, Step.DISPUTE, person, expected, lambda *_: change)


def cancel(
    tx: Tx, quest_id: UUID, person: Person, *, reason: str | None = None, expected: Expected = ANY_VERSION
) -> Quest:
    change = Change(Status.CANCELLED, reason=reason)
    return _take(tx, quest_id, Step.CANCEL, person, expected, lambda *_: change)


@dataclass(frozen=True)
class NewAttestation:
    rating: int
    comments: str | None = None
    signature: str | None = None


def attest(
    tx: Tx,
    quest_id: UUID,
    person: Person,
    new: NewAttestation,
    settings: Quests,
    *,
    now: datetime,
    expected: Expected = ANY_VERSION,
) -> Quest:
    """Say how good the work is. The attestation that makes up the required number completes or disputes the quest."""
    user_id = person.require_user()

    def decide(quest: Quest, _people: Mapping[UUID, LockedPerson]) -> Change:
        before = _verdict(tx, quest)
        if user_id in before.ratings:
            raise RuleBroken("already_attested", "You have attested this work before")
        today = tx.run(_ATTESTED_TODAY, {"tenant": tx.tenant, "user": user_id, "midnight": midnight(now)})[0].count
        if today >= settings.attestations_per_day:
            detail = f"You may attest {settings.attestations_per_day} times in a day (UTC)"
            raise RuleBroken("attestation_budget_spent", detail)
        verdict = _Verdict({**before.ratings, user_id: new.rating})
        to = verdict.status(quest, settings)

        def then(attested: Quest) -> None:
            _record_attestation(tx, attested, user_id, new)
            if to is Status.COMPLETE:
                _complete(tx, attested, now=now)
            rings.watch(tx, attester_id=user_id, performer_id=_performer_of(attested), now=now)

        values = {"completed_at": _NOW} if to is Status.COMPLETE else {}
        reason = f"average rating {verdict.average:.2f}" if to is Status.DISPUTED else None
        return Change(to, values, reason=reason, then=then)

    return _take(tx, quest_id, Step.ATTEST, person, expected, decide, require=_require_payable, with_performer=True)


def resolve(
    tx: Tx,
    quest_id: UUID,
    person: Person,
    to: Status,
    *,
    reason: str,
    now: datetime,
    expires_at: datetime | None = None,
    expected: Expected = ANY_VERSION,
) -> Quest:
    """End a dispute: pay, open a new round, or cancel."""
    if expires_at is not None and expires_at <= now:
        raise Invalid.field("expires_at", "must be in the future")

    def require(quest: Quest, locked: Mapping[UUID, LockedPerson]) -> None:
        until = expires_at or quest.expires_at
        if to is Status.COMPLETE:
            _require_payable(quest, locked)
        elif to is Status.OPEN and until is not None and until <= now:
            raise Invalid.field("expires_at", "the quest has expired: say until when the new round is open")

    def decide(quest: Quest, _people: Mapping[UUID, LockedPerson]) -> Change:
        match to:
            case Status.COMPLETE:
                return Change(to, {"completed_at": _NOW}, reason, then=lambda done: _complete(tx, done, now=now))
            case Status.OPEN:
                values = {**_OPENED, "round": Quest.round + 1, "expires_at": expires_at or quest.expires_at}
                return Change(to, values, reason, leaves=["performer_id", "submission"])
            case _:
                return Change(to, reason=reason)

    return _take(tx, quest_id, Step.RESOLVE, person, expected, decide, require=require, with_performer=True)


def _take(
    tx: Tx,
    quest_id: UUID,
    step: Step,
    person: Person,
    expected: Expected,
    decide: Decide,
    *,
    require: Callable[[Quest, Mapping[UUID, LockedPerson]], None] = lambda *_: None,
    with_performer: bool = False,
) -> Quest:
    """Take a step. `require`: more that the state must allow, judged before anybody's rights.

    `with_performer`: also the performer is locked, since the step counts for them or pays them.
    """
    locked: Mapping[UUID, LockedPerson] = {}
    for attempt in range(2):
        quest, is_past = _read(tx, quest_id, lock=attempt > 0)
        expected.check(quest)
        people.require_state(quest, step, is_past=is_past)
        wanted = {user for user in (person.user_id, quest.performer_id if with_performer else None) if user is not None}
        if not attempt:
            locked = people.lock(tx, wanted)
        elif not wanted <= locked.keys():
            raise Contended
        require(quest, locked)
        _require_active(person, locked)
        people.require_role(quest, step, person)
        change = decide(quest, locked)
        before, left = Status(quest.status), {name: getattr(quest, name) for name in change.leaves}
        taken = _apply(tx, quest, change)
        if taken is not None:
            history.record(tx, taken, step, before, person, reason=change.reason, left=left)
            change.then(taken)
            return taken
    raise Contended


def _read(tx: Tx, quest_id: UUID, *, lock: bool) -> tuple[Quest, bool]:
    """The quest as it is now, and whether its time has come."""
    is_past = (Quest.expires_at <= _NOW) & Quest.status.in_(EXPIRING)
    query = select(Quest, func.coalesce(is_past, False)).where(Quest.id == quest_id)
    query = query.execution_options(populate_existing=True)
    row = tx.execute(query.with_for_update(of=Quest, key_share=True) if lock else query).one_or_none()
    if row is None:
        raise QuestNotFound
    return row[0], bool(row[1])


def _apply(tx: Tx, quest: Quest, change: Change) -> Quest | None:
    """Change the quest if it is as it was read, and not past its time; None otherwise."""
    is_as_read = (Quest.id == quest.id) & (Quest.status == quest.status) & (Quest.version == quest.version)
    if quest.status in EXPIRING:
        is_as_read &= or_(Quest.expires_at.is_(None), Quest.expires_at > _NOW)
    values = {"status": change.to.value, "version": Quest.version + 1, "updated_at": _CHANGED_AT, **change.values}
    changed = update(Quest).where(is_as_read).values(values).returning(Quest)
    options = {"synchronize_session": False, "populate_existing": True}
    return tx.scalars(changed, execution_options=options).one_or_none()


def _require_room_for_claim(tx: Tx, user_id: UUID, settings: Quests) -> None:
    claims = tx.run(_OPEN_CLAIMS, {"tenant": tx.tenant, "user": user_id})[0].count
    if claims >= settings.open_claims:
        raise RuleBroken("open_claims_spent", f"You may have {settings.open_claims} open claims: submit one first")


def _require_active(person: Person, locked: Mapping[UUID, LockedPerson]) -> None:
    if person.user_id is not None:
        user = locked.get(person.user_id)
        if user is None or user.is_suspended or user.is_erased:
            raise UserSuspended


def _require_payable(quest: Quest, locked: Mapping[UUID, LockedPerson]) -> None:
    performer = locked.get(_performer_of(quest))
    if performer is None or performer.is_suspended or performer.is_erased:
        raise PerformerSuspended


def _performer_of(quest: Quest) -> UUID:
    assert quest.performer_id is not None  # noqa: S101  in these states there is one
    return quest.performer_id


@dataclass(frozen=True)
class _Verdict:
    """The ratings of a round, by attester."""

    ratings: Mapping[UUID, int]

    @property
    def average(self) -> float:
        return sum(self.ratings.values()) / len(self.ratings)

    def status(self, quest: Quest, settings: Quests) -> Status:
        """What the quest becomes with these ratings."""
        needs_witness = quest.reward_xp > settings.witness_above_xp and not self.ratings.keys() - {quest.creator_id}
        if len(self.ratings) < quest.attestations_required or needs_witness:
            return Status.PENDING_REVIEW
        return Status.COMPLETE if self.average >= quest.min_rating else Status.DISPUTED


def _verdict(tx: Tx, quest: Quest) -> _Verdict:
    rows = tx.run(_RATINGS, {"tenant": tx.tenant, "quest": quest.id, "round": quest.round})
    return _Verdict({row.attester_id: row.rating for row in rows})


def _record_attestation(tx: Tx, quest: Quest, user_id: UUID, new: NewAttestation) -> None:
    tx.run(
        _ATTEST,
        {
            "tenant": tx.tenant,
            "quest": quest.id,
            "round": quest.round,
            "attester": user_id,
            "performer": quest.performer_id,
            "rating": new.rating,
            "comments": new.comments,
            "signature": new.signature,
            "at": quest.updated_at,
        },
    )


def _complete(tx: Tx, quest: Quest, *, now: datetime) -> None:
    tx.run(_COUNT_COMPLETED, {"tenant": tx.tenant, "performer": quest.performer_id})
    rewards.pay(tx, quest, now=now)


_OPEN_CLAIMS = text("""
    SELECT count(*) FROM quests WHERE tenant_id = :tenant AND performer_id = :user AND status = 'CLAIMED'
      AND (expires_at IS NULL OR expires_at > statement_timestamp())
""")
_ATTESTED_TODAY = text("""
    SELECT count(*) FROM attestations WHERE tenant_id = :tenant AND attester_id = :user AND created_at >= :midnight
""")
_RATINGS = text("""
    SELECT attester_id, rating FROM attestations WHERE tenant_id = :tenant AND quest_id = :quest AND round = :round
""")
# One statement: the attestation, and the counts of both.
_ATTEST = text("""
    WITH attested AS (
        INSERT INTO attestations (tenant_id, quest_id, round, attester_id, performer_id, rating, comments, signature,
                                  created_at)
        VALUES (:tenant, :quest, :round, :attester, :performer, :rating, :comments, :signature, :at)
        RETURNING attester_id, performer_id
    )
    UPDATE users u SET attestations_given = u.attestations_given + (u.id = a.attester_id)::int,
        attestations_received = u.attestations_received + (u.id = a.performer_id)::int
    FROM attested a WHERE u.tenant_id = :tenant AND u.id IN (a.attester_id, a.performer_id) RETURNING u.id
""")
_COUNT_COMPLETED = text("""
    UPDATE users SET quests_completed = quests_completed + 1 WHERE tenant_id = :tenant AND id = :performer RETURNING id
""")
