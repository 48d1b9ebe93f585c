"""What a call of the fast lane is: which route it stands for, who may call it, and how it is answered."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

from analytics.boards.names import Board
from analytics.boards.reading import Around, Top
from analytics.ingest.writes import WriteRequest
from app.http.auth import Actor, Reader
from app.http.fast_answer import FastAnswer
from app.http.rights import May
from tenants.shares import Caller

Environ = dict[str, Any]


@dataclass(frozen=True, slots=True)
class UnknownCaller:
    """A caller whom this process has not met yet."""

    authorization: str


@dataclass(frozen=True, slots=True)
class UnknownPage:
    """A page whose id this process does not know."""

    tenant_id: str
    external_id: str


# What must be looked up before a call can be answered on an event loop.
Unknown = UnknownCaller | UnknownPage


@dataclass(frozen=True, slots=True)
class BoardQuestion:
    """A part of a board that a reader asks for. `caller`: whose share it uses until it is answered."""

    caller: str
    reader: Reader
    board: Board
    part: Top | Around
    # Under what its answer is kept.
    key: Hashable

    @property
    def asker(self) -> Caller:
        return Caller(self.reader.tenant_id, self.caller)


@dataclass(frozen=True, slots=True)
class FastRead:
    """A read that the fast lane may answer."""

    method: str
    route: str
    may: May
    # The answer that is kept in memory, if there is one: by the path with its query, and `If-None-Match`.
    kept: Callable[[Reader, str, str | None], FastAnswer | None]
    # What must be read otherwise, if it can be read together with others: by the path with its query, and the query.
    question: Callable[[Actor, str, str], BoardQuestion | UnknownPage | None] | None
    # The answer, kept or new, which may have to wait; None: the route must answer.
    answer: Callable[[Reader, Environ], FastAnswer | None]


@dataclass(frozen=True, slots=True)
class FastWrite:
    """A write that the fast lane may answer."""

    method: str
    route: str
    may: May
    # What is to be written; None: the route must answer.
    request: Callable[[Actor, Environ], WriteRequest | None]
    # The answer, once it is written; None: the route must answer, without writing again.
    answer: Callable[[Actor, Environ, WriteRequest], FastAnswer | None]


FastCall = FastRead | FastWrite
