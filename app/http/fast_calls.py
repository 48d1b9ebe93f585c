"""What a call of the fast lane is: which route it stands for, who may call it, and how it is answered."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from app.http.auth import Actor
from app.http.fast_answer import FastAnswer
from app.http.rights import May

Environ = dict[str, Any]


@dataclass(frozen=True, slots=True)
class FastCall:
    """A call that the fast lane may answer. `answer` returns None if the route must."""

    method: str
    route: str
    may: May
    answer: Callable[[Actor, Environ], FastAnswer | None]
