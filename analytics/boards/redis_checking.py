"""The Redis side of `plaudit check`: the values that members have, and the members that no board should have.

Keys are written out here, not taken from the projection, so that a mistake in its names is found. Called under the
tenant's board lock, but for the global boards.
"""

from collections import Counter
from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

from sqlalchemy import text

from analytics.boards.board_sql import rows_of
from analytics.boards.names import Board
from analytics.boards.user_numbers import user_of
from analytics.comparing import Compared, Found, Walk
from analytics.metrics import METRICS, page_metrics
from analytics.windows import WINDOWS
from tenants import redis
from tenants.db import Tx

if TYPE_CHECKING:
    from redis import Redis

MAX_MEMBERS_PER_COMMAND = 5_000
NOT_COMPLETE = ("the board", "not complete", "complete: is a worker running?")


def key_of(tenant_id: str, topic: str) -> str:
    return f"lb:{tenant_id}:{topic}"


def values_of(client: "Redis", asked: Mapping[str, Sequence[str]]) -> dict[str, dict[str, float | None] | None]:
    """By the board's key: the value of each of these members, or None if Redis does not have the board whole."""
    with client.pipeline(transaction=False) as pipe:
        for key, members in asked.items():
            pipe.exists(f"lbv:{{{key}}}")
            for chunk in _chunks(members):
                pipe.zmscore(key, chunk)
        answers = iter(pipe.execute())
    values: dict[str, dict[str, float | None] | None] = {}
    for key, members in asked.items():
        is_whole = next(answers)
        found = [value for _ in _chunks(members) for value in next(answers)]
        values[key] = dict(zip(members, found, strict=True)) if is_whole else None
    return values


def members_of_users(client: "Redis", asked: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """By the board's key: the member that each of these users has there, empty without one."""
    with client.pipeline(transaction=False) as pipe:
        for key, users in asked.items():
            for chunk in _chunks(users):
                pipe.hmget(f"lbu:{{{key}}}", chunk)
        answers = iter(pipe.execute())
    return {
        key: [member.decode() if member else "" for _ in _chunks(users) for member in next(answers)]
        for key, users in asked.items()
    }


def on_global(walk: Walk, shared: Container[int]) -> Iterator[Found]:
    """The members of the global boards that are none of the pages that tenants share."""
    with redis.boards().client() as client:
        for metric in page_metrics():
            for window in WINDOWS:
                key = key_of(walk.tenant_id, f"global:{window}:{metric}")
                cursor, is_first = 0, True
                while client.exists(f"lbv:{{{key}}}") and (cursor or is_first):
                    walk.require_time("global", 0, 0)
                    cursor, pairs = client.zscan(key, cursor, count=MAX_MEMBERS_PER_COMMAND)
                    is_first = False
                    for member, value in _decoded(pairs).items():
                        if not _is_page_id(member) or int(member) not in shared:
                            yield key, f"page number {member}", value, None


def surplus(walk: Walk, part: str, members: Counter[str], lost: Collection[str], *, of_users: bool) -> Compared:
    """The members of a tenant's boards that should not be there; and the boards that are lost.

    A board that has as many members as it must have, all of which were found there, has no others.
    """
    done = Compared()
    with redis.boards().client() as client:
        sizes = _sizes(client, walk.tenant_id, members.keys() - lost, of_users=of_users)
        suspects = [topic for topic, size in sizes.items() if size != members[topic]]
        for number, topic in enumerate(sorted(suspects)):
            walk.watch(f"{part}: members of boards", number, len(suspects))
            cursor, is_first = 0, True
            while cursor or is_first:
                walk.require_time(part, number, len(suspects))
                seen = walk.look(partial(_scan, client, topic, cursor), with_boards=True)
                done.add(seen)
                cursor, is_first = seen.cursor, False
    expected = {topic for topic, number in members.items() if number}
    missing = sorted(expected & {*lost})
    if missing and not of_users and len(missing) == len(expected):
        how = f"{len(missing)} of them: a running worker fills them, or plaudit rebuild"
        done.found.append(("Redis", "the boards", "none (it was emptied, or restarted)", how))
    else:
        done.found += [(key_of(walk.tenant_id, topic), *NOT_COMPLETE) for topic in missing]
    return done


@dataclass
class _Scanned(Compared):
    cursor: int = field(default=0)


def _sizes(client: "Redis", tenant_id: str, known: Collection[str], *, of_users: bool) -> dict[str, int]:
    """How many members each whole board has that Redis knows of, or should."""
    prefix = key_of(tenant_id, "")
    kept = {key.decode().removeprefix(prefix) for key in client.scan_iter(f"{prefix}*", count=1_000)}
    topics = sorted({topic for topic in kept if topic.startswith("users:") == of_users} | {*known})
    with client.pipeline(transaction=False) as pipe:
        for topic in topics:
            pipe.exists(f"lbv:{{{prefix}{topic}}}")
            pipe.zcard(prefix + topic)
        answers = pipe.execute()
    return {topic: size for topic, is_whole, size in zip(topics, answers[::2], answers[1::2], strict=True) if is_whole}


def _scan(client: "Redis", topic: str, cursor: int, tx: Tx) -> _Scanned:
    """The next members of a board, but for those whose saved numbers have them there, and late ones."""
    key = key_of(tx.tenant, topic)
    following, pairs = client.zscan(key, cursor, count=MAX_MEMBERS_PER_COMMAND)
    found = _decoded(pairs)
    strangers = {*found} - _saved(tx, topic, found)
    strangers -= _late(tx, strangers) if strangers else set()
    names = _names(tx, strangers)
    return _Scanned([(key, names[member], found[member], None) for member in sorted(strangers)], cursor=int(following))


def _decoded(pairs: Any) -> dict[str, float]:
    return {member.decode(): value for member, value in pairs}


def _names(tx: Tx, members: Collection[str]) -> dict[str, str]:
    """How a difference names them: by the page's own id, if there is such a page, or the user's."""
    page_ids = [member for member in members if _is_page_id(member)]
    if not page_ids:
        return {member: f"user {user_of(member)}" for member in members}
    rows = tx.execute(
        text("SELECT id::text, external_id FROM pages WHERE tenant_id = :tenant AND id = ANY(CAST(:ids AS bigint[]))"),
        {"tenant": tx.tenant, "ids": page_ids},
    )
    return {member: f"page number {member}" for member in members} | {row.id: f"page {row.external_id}" for row in rows}


def _saved(tx: Tx, topic: str, members: Collection[str]) -> set[str]:
    board = _board(tx.tenant, topic)
    if board is None:
        return set()
    of = rows_of(board)
    is_subject, column_type = (_is_user_id, "uuid") if board.is_users else (_is_page_id, "bigint")
    subjects = [subject for member in members if is_subject(subject := user_of(member))]
    rows = tx.scalars(
        text(f"""
            SELECT {of.member} FROM {of.table} s
            WHERE {of.where} AND {of.subject} = ANY(CAST(:subjects AS {column_type}[]))
        """),  # noqa: S608  names from the tables of metrics and windows
        {**of.parameters, "subjects": subjects},
    )
    return set(rows)


def _late(tx: Tx, members: Collection[str]) -> set[str]:
    late = set(
        tx.scalars(
            text("""
                SELECT member FROM outbox WHERE tenant_id = :tenant AND member = ANY(:subjects)
                UNION SELECT member FROM projecting WHERE tenant_id = :tenant AND member = ANY(:subjects)
            """),
            {"tenant": tx.tenant, "subjects": [user_of(member) for member in members]},
        )
    )
    return {member for member in members if user_of(member) in late}


def _board(tenant_id: str, topic: str) -> Board | None:
    """The board of a topic; None if there is no such metric or window any more."""
    scope, window, metric = topic.rsplit(":", 2)
    if window not in WINDOWS or metric not in METRICS:
        return None
    return Board(tenant_id, scope, WINDOWS[window], METRICS[metric])


def _is_page_id(member: str) -> bool:
    return member.isdecimal() and len(member) < 19


def _is_user_id(subject: str) -> bool:
    with suppress(ValueError):
        return str(UUID(subject)) == subject
    return False


def _chunks(members: Sequence[str]) -> Iterator[list[str]]:
    for start in range(0, len(members), MAX_MEMBERS_PER_COMMAND):
        yield [*members[start : start + MAX_MEMBERS_PER_COMMAND]]
