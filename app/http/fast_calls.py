"""What a call of the fast lane is: which route it stands for, who may call it, and how it is answered."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from app.http.auth import Actor
from app.http.rights import May

Environ = dict[str, Any]


@dataclass(frozen=True, slots=True)
class FastAnswer:
    """A complete answer, but for the headers that every answer has."""

    status: str
    body: bytes
    headers: Sequence[tuple[str, str]] = ()

    @property
    def code(self) -> int:
        return int(self.status[:3])


@dataclass(frozen=True, slots=True)
class FastCall:
    """A call that the fast lane may answer. `answer` returns None if the route must."""

    method: str
    route: str
    may: May
    # Whether a client's token is checked before; else it is checked in the transaction of the effect.
    check_token: bool
    answer: Callable[[Actor, Environ], FastAnswer | None]
