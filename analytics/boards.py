"""Boards: what they are called, and how they are written to Redis.

A board is a sorted set `lb:<tenant>:<scope>:<window>:<metric>` (member → value) beside a marker `lbv:…` that holds its
version. A board without its marker does not count: Redis was emptied, and what little was written since would look
like a board and be none. So the marker is only ever *replaced* by a projection (SET XX), and *made* by a rebuild,
which fills another key and renames it. Commands touch one key each, so all this runs on a Redis Cluster too; the
rebuild's key carries the board's name as its hash tag, and so lives beside it.

Only a projection writes here, one at a time for each tenant, and only absolute values.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import orjson

from analytics.pages import SPACE_KEY
from analytics.windows import Window
from tenants.errors import Invalid
from tenants.redis import key

if TYPE_CHECKING:
    from redis import Redis

# The reserved tenant that the global boards belong to.
ALL_TENANTS = "_all"
GLOBAL = "global"
MEMBERS_A_COMMAND = 2_000
CHANNEL = "lb-changed"

Value = int | float


class Metric(StrEnum):
    LIKES = "likes"
    VIEWS = "views"
    SCORE = "score"


# What there is a number of for each page, in the order in which everything here lists them.
CELLS: tuple[tuple[Metric, Window], ...] = tuple((metric, window) for metric in Metric for window in Window)
NOTHING: tuple[Value, ...] = (0,) * len(CELLS)


class UnknownScope(Invalid):
    code = "unknown_scope"
    title = "There is no such board"


@dataclass(frozen=True, slots=True)
class Board:
    tenant_id: str
    scope: str
    window: Window
    metric: Metric

    @property
    def topic(self) -> str:
        return f"{self.scope}:{self.window}:{self.metric}"

    @property
    def key(self) -> str:
        return key("lb", self.tenant_id, self.topic)

    @property
    def marker(self) -> str:
        return key("lbv", self.tenant_id, self.topic)

    @property
    def space(self) -> str | None:
        """The space whose pages it ranks; None: all."""
        return self.scope.partition(":")[2] or None

    @property
    def is_public(self) -> bool:
        """Whether only public pages are on it."""
        return self.scope.partition(":")[0] in {"public", GLOBAL}


def board_of(tenant_id: str, scope: str, window: Window, metric: Metric) -> Board:
    """The board that a caller of this tenant names."""
    kind, colon, space = scope.partition(":")
    if scope == GLOBAL:
        return Board(ALL_TENANTS, GLOBAL, window, metric)
    known = scope in {"tenant", "public"} or (
        kind in {"space", "public"} and bool(colon) and SPACE_KEY.fullmatch(space)
    )
    if not known:
        said = "tenant, space:<key>, public, public:<key> or global"
        raise UnknownScope(f"scope: {said}", errors={"scope": [said]})
    return Board(tenant_id, scope, window, metric)


def boards_in(tenant_id: str, scope: str) -> list[Board]:
    """All boards of a scope, in the order of CELLS."""
    owner = ALL_TENANTS if scope == GLOBAL else tenant_id
    return [Board(owner, scope, window, metric) for metric, window in CELLS]


def scopes_of(space: str, *, is_public: bool, is_shared: bool) -> list[str]:
    """The scopes that a page is in."""
    scopes = ["tenant", f"space:{space}"]
    if is_public:
        scopes += ["public", f"public:{space}"]
        if is_shared:
            scopes.append(GLOBAL)
    return scopes


@dataclass(frozen=True)
class Summary:
    """What a row of a board shows of its page."""

    external_id: str
    title: str
    url: str
    space: str
    tenant_id: str

    def fields(self) -> dict[str, str]:
        return {
            "external_id": self.external_id,
            "title": self.title,
            "url": self.url,
            "space": self.space,
            "tenant": self.tenant_id,
        }


def summary_key(tenant_id: str, member: str) -> str:
    return key("pgs", tenant_id, member)


@dataclass
class Changes:
    """What is to become of some boards: values to set, members to remove, summaries."""

    values: dict[Board, dict[str, Value]] = field(default_factory=dict)
    removed: dict[Board, list[str]] = field(default_factory=dict)
    touched: set[Board] = field(default_factory=set)
    summaries: dict[str, Mapping[str, str] | None] = field(default_factory=dict)

    def place(self, board: Board, member: str, value: Value) -> None:
        """A value of 0 is on no board."""
        if value:
            self.values.setdefault(board, {})[member] = value
        else:
            self.removed.setdefault(board, []).append(member)

    def boards(self) -> set[Board]:
        return self.values.keys() | self.removed.keys() | self.touched

    def __bool__(self) -> bool:
        return bool(self.boards() or self.summaries)


@dataclass(frozen=True)
class Version:
    """How often a board has changed, and when it last did."""

    number: int
    changed_at: datetime

    def dump(self) -> str:
        return f"{self.number} {self.changed_at.isoformat()}"

    @classmethod
    def load(cls, text: str | bytes) -> "Version":
        number, _, changed_at = (text.decode() if isinstance(text, bytes) else text).partition(" ")
        return cls(int(number), datetime.fromisoformat(changed_at))


def write(redis: "Redis", changes: Changes, versions: Mapping[Board, Version]) -> list[Board]:
    """Write these values; the boards that have no marker and must be rebuilt."""
    ordered = sorted(versions, key=lambda board: board.key)
    with redis.pipeline(transaction=False) as pipe:
        _write_summaries(pipe, changes.summaries)
        for board in ordered:
            for members in _chunks(changes.removed.get(board, ())):
                pipe.zrem(board.key, *members)
            for values in _chunks(changes.values.get(board, {}).items()):
                pipe.zadd(board.key, dict(values))
        pipe.execute()
        for board in ordered:
            pipe.set(board.marker, versions[board].dump(), xx=True)
        there = pipe.execute()
    return [board for board, replaced in zip(ordered, there, strict=True) if not replaced]


class Rebuild:
    """Boards filled anew: beside the old ones first, then in their place."""

    def __init__(self, redis: "Redis", boards: Iterable[Board]) -> None:
        self._redis = redis
        self._boards = list(boards)
        self._filled: set[Board] = set()
        with redis.pipeline(transaction=False) as pipe:
            for board in self._boards:
                pipe.delete(_beside(board))
            pipe.execute()

    def add(self, values: Mapping[Board, Mapping[str, Value]], summaries: Mapping[str, Mapping[str, str]]) -> None:
        with self._redis.pipeline(transaction=False) as pipe:
            _write_summaries(pipe, summaries)
            for board, members in values.items():
                for chunk in _chunks(members.items()):
                    pipe.zadd(_beside(board), dict(chunk))
                if members:
                    self._filled.add(board)
            pipe.execute()

    def finish(self, versions: Mapping[Board, Version]) -> None:
        with self._redis.pipeline(transaction=False) as pipe:
            for board in self._boards:
                if board in self._filled:
                    pipe.rename(_beside(board), board.key)
                else:
                    pipe.delete(board.key)
                pipe.set(board.marker, versions[board].dump())
            pipe.execute()


def publish(redis: "Redis", versions: Mapping[Board, Version]) -> None:
    """Tell every process which boards moved, one message for each tenant."""
    by_tenant: dict[str, dict[str, int]] = {}
    for board, version in versions.items():
        by_tenant.setdefault(board.tenant_id, {})[board.topic] = version.number
    for tenant_id, topics in by_tenant.items():
        redis.publish(CHANNEL, orjson.dumps({"tenant": tenant_id, "versions": topics}))


def without_marker(redis: "Redis", boards: Sequence[Board]) -> list[Board]:
    with redis.pipeline(transaction=False) as pipe:
        for board in boards:
            pipe.exists(board.marker)
        return [board for board, there in zip(boards, pipe.execute(), strict=True) if not there]


def drop_others(redis: "Redis", tenant_id: str, known: Iterable[Board]) -> None:
    """Remove what looks like a board of this tenant and is none."""
    keys = {board.key for board in known}
    for found in redis.scan_iter(match=key("lb", tenant_id, "*"), count=1000):
        if found.decode() not in keys:
            redis.unlink(found)
            redis.unlink(found.decode().replace("lb:", "lbv:", 1))


def forget(redis: "Redis", tenant_id: str) -> None:
    """Remove every key of a tenant that is gone."""
    for pattern in (key("lb", tenant_id, "*"), key("lbv", tenant_id, "*"), key("pgs", tenant_id, "*")):
        for found in redis.scan_iter(match=pattern, count=1000):
            redis.unlink(found)
    redis.unlink(ready_key(tenant_id))


def ready_key(tenant_id: str) -> str:
    """Says that every board of the tenant had its marker when it was last looked at."""
    return key("lbr", tenant_id)


def _beside(board: Board) -> str:
    return f"{{{board.key}}}:new"


def _write_summaries(pipe: Any, summaries: Mapping[str, Mapping[str, str] | None]) -> None:
    for name, fields in summaries.items():
        if fields is None:
            pipe.delete(name)
        else:
            pipe.hset(name, mapping=dict(fields))


def _chunks(items: Iterable[Any]) -> Iterator[list[Any]]:
    chunk = list(items)
    for start in range(0, len(chunk), MEMBERS_A_COMMAND):
        yield chunk[start : start + MEMBERS_A_COMMAND]
