"""What a board is called: its tenant, scope, window and metric, and the keys that Redis has it under. Pure."""

import re
from dataclasses import dataclass
from datetime import datetime

from analytics.metrics import CELLS, PAGE_METRICS, USER_CELLS, Metric
from analytics.windows import Window
from tenants.errors import Invalid
from tenants.redis import key

# The reserved tenant that the global boards belong to.
ALL_TENANTS = "_all"
GLOBAL = "global"
SPACE_KEY = re.compile(r"[A-Za-z0-9._~-]{1,64}")


class UnknownScope(Invalid):
    code = "unknown_scope"
    title = "There is no such board"


class UnknownMetric(Invalid):
    code = "unknown_metric"
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
        """Its hash tag is the board's own name, so that both are on one node and change together."""
        return f"lbv:{{{self.key}}}"

    @property
    def lookup(self) -> str:
        """On a user board: which member is whose."""
        return f"lbu:{{{self.key}}}"

    @property
    def part(self) -> str | None:
        """The space whose pages it ranks, or the segment whose users; None: all."""
        return self.scope.partition(":")[2] or None

    @property
    def is_users(self) -> bool:
        return self.scope.partition(":")[0] == "users"

    @property
    def is_public(self) -> bool:
        """Whether only public pages are on it."""
        return self.scope.partition(":")[0] in {"public", GLOBAL}


def board_of(tenant_id: str, scope: str, window: Window, metric: Metric) -> Board:
    """The board that a caller of this tenant names."""
    kind, colon, part = scope.partition(":")
    known = scope in {"tenant", "public", "users", GLOBAL} or (
        kind in {"space", "public", "users"} and bool(colon) and SPACE_KEY.fullmatch(part)
    )
    if not known:
        raise UnknownScope.field("scope", "tenant, space:<key>, public, public:<key>, global, users or users:<segment>")
    board = Board(ALL_TENANTS if scope == GLOBAL else tenant_id, scope, window, metric)
    if (metric in PAGE_METRICS) == board.is_users:
        raise UnknownMetric.field("metric", "points for users; likes, views or score for pages")
    return board


def boards_in(tenant_id: str, scope: str) -> list[Board]:
    """All boards of a scope, in the order of CELLS or USER_CELLS."""
    owner = ALL_TENANTS if scope == GLOBAL else tenant_id
    cells = USER_CELLS if scope.partition(":")[0] == "users" else CELLS
    return [Board(owner, scope, window, metric) for metric, window in cells]


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
    is_public: bool

    def fields(self) -> dict[str, str]:
        return {
            "external_id": self.external_id,
            "title": self.title,
            "url": self.url,
            "space": self.space,
            "tenant": self.tenant_id,
            "public": "1" if self.is_public else "0",
        }


def summary_key(tenant_id: str, member: str) -> str:
    return key("pgs", tenant_id, member)


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
