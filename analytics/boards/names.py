"""Boards by name: tenant, scope, window and metric, and the Redis keys that follow from them. Pure.

Scopes of page boards: `tenant`, `space:<key>`, `public`, `public:<key>` and `global` (the shared public pages of all
tenants). Scopes of user boards: `users` and `users:<segment>`.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property, lru_cache

from analytics.metrics import METRICS, SCORE, Metric, names_of, page_columns, page_metrics, user_metrics
from analytics.windows import Window
from tenants.errors import Invalid
from tenants.redis import key
from tenants.settings import SPACE_KEY

# The reserved tenant that the global boards belong to.
ALL_TENANTS = "_all"
GLOBAL = "global"
# Boards that requests name again and again, with the names that follow from them.
MAX_KEPT_BOARDS = 10_000


class UnknownScope(Invalid):
    code = "unknown_scope"
    title = "There is no such board"


class UnknownMetric(Invalid):
    code = "unknown_metric"
    title = "There is no such board"


@dataclass(frozen=True)
class Board:
    tenant_id: str
    scope: str
    window: Window
    metric: Metric

    @cached_property
    def topic(self) -> str:
        return f"{self.scope}:{self.window}:{self.metric}"

    @cached_property
    def key(self) -> str:
        """The sorted set: member → value."""
        return key("lb", self.tenant_id, self.topic)

    @cached_property
    def marker(self) -> str:
        """The board's version. The hash tag is the board's own key, so that both are on one node of a cluster."""
        return f"lbv:{{{self.key}}}"

    @cached_property
    def lookup(self) -> str:
        """On a user board: user id → member."""
        return f"lbu:{{{self.key}}}"

    @cached_property
    def unfinished(self) -> str:
        """The board that is being filled, and replaces this one (`analytics.boards.filling`)."""
        return f"{{{self.key}}}:new"

    @cached_property
    def unfinished_lookup(self) -> str:
        return f"{{{self.key}}}:new-lookup"

    @cached_property
    def filled_to(self) -> str:
        """How far it is filled."""
        return f"{{{self.key}}}:new-filled-to"

    @cached_property
    def scope_key(self) -> str | None:
        """The space whose pages it ranks, or the segment whose users; None: all."""
        return self.scope.partition(":")[2] or None

    @cached_property
    def is_users(self) -> bool:
        return is_user_scope(self.scope)

    @cached_property
    def is_global(self) -> bool:
        return self.tenant_id == ALL_TENANTS

    @cached_property
    def is_public(self) -> bool:
        """Whether it has public pages only."""
        return self.scope.partition(":")[0] in {"public", GLOBAL}


def is_user_scope(scope: str) -> bool:
    return scope.partition(":")[0] == "users"


@lru_cache(maxsize=MAX_KEPT_BOARDS)
def board_of(tenant_id: str, scope: str, window: Window, metric: str | None) -> Board:
    """The board that a caller of this tenant names; without a metric, the usual one of its scope."""
    kind, colon, part = scope.partition(":")
    known = scope in {"tenant", "public", "users", GLOBAL} or (
        kind in {"space", "public", "users"} and bool(colon) and SPACE_KEY.fullmatch(part)
    )
    if not known:
        raise UnknownScope.field("scope", "tenant, space:<key>, public, public:<key>, global, users or users:<segment>")
    of_users = tuple(user_metrics())
    choices = of_users if is_user_scope(scope) else page_metrics()
    chosen = METRICS.get(metric) if metric is not None else of_users[0] if is_user_scope(scope) else SCORE
    if chosen not in choices:
        raise UnknownMetric.field("metric", f"{names_of(of_users)} for users; {names_of(page_metrics())} for pages")
    return Board(ALL_TENANTS if scope == GLOBAL else tenant_id, scope, window, chosen)


def boards_in(tenant_id: str, scope: str) -> list[Board]:
    """All boards of a scope: page boards in the order of `page_columns`, user boards by metric and window."""
    owner = ALL_TENANTS if scope == GLOBAL else tenant_id
    if is_user_scope(scope):
        return [Board(owner, scope, window, metric) for metric in user_metrics() for window in Window]
    return [Board(owner, scope, window, metric) for metric, window in page_columns().values()]


def page_scopes(space: str, *, is_public: bool, is_shared: bool) -> list[str]:
    """The scopes that a page is in."""
    scopes = ["tenant", f"space:{space}"]
    if is_public:
        scopes += ["public", f"public:{space}"]
        if is_shared:
            scopes.append(GLOBAL)
    return scopes


def user_scopes(segments: Iterable[str]) -> list[str]:
    """The scopes that a user is in."""
    return ["users", *(f"users:{segment}" for segment in segments)]


@dataclass(frozen=True)
class Version:
    """A number that grows with every change of a board, and when it last changed."""

    number: int
    changed_at: datetime

    def dump(self) -> str:
        return f"{self.number} {self.changed_at.isoformat()}"

    @classmethod
    def load(cls, text: str | bytes) -> "Version":
        number, _, changed_at = (text.decode() if isinstance(text, bytes) else text).partition(" ")
        return cls(int(number), datetime.fromisoformat(changed_at))
