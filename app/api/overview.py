"""The totals and trends of a tenant, or of one of its spaces."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Any

import marshmallow as ma
import orjson
from flask import Response

from analytics.boards import overviews
from analytics.boards.names import Board
from analytics.ingest import pages
from analytics.metrics import VIEWS, counted_metrics
from analytics.windows import Window
from app.api.blueprint import Blueprint, Schema
from app.api.pages import PointOut
from app.http.answer_cache import Answer
from app.http.auth import current_actor, current_reader
from app.http.boards import board_for
from app.http.conditional import conditional, if_changed
from app.http.edge import quiet
from app.http.rights import May, requires
from app.http.transactions import actor_tx
from tenants import throttle
from tenants.db import utcnow
from tenants.errors import Invalid

blueprint = Blueprint("overview", __name__, url_prefix="/api/v1/overview", description="Totals and trends")

# Of answers that are not cached, for each caller.
READS_PER_MINUTE = 300
# Quick answers are never cached, so they are never stale; slow ones for ten times their cost: a tenth of a core.
QUICK_S = 0.1
MAX_AGE_PER_COST = 10
MAX_ANSWERS_PER_TENANT = 100
MAX_TENANTS = 1_000


class OverviewIn(Schema):
    scope = ma.fields.String(
        validate=ma.validate.Length(1, 80),
        metadata={
            "description": "tenant, space:<key>, public or public:<key>. The default is tenant, or public for callers"
            " who see public pages only"
        },
    )
    window = ma.fields.Enum(Window, by_value=True, load_default=Window.WEEK)


class CountedOut(Schema):
    total = ma.fields.Integer(required=True)
    previous = ma.fields.Integer(
        allow_none=True, metadata={"description": "in the previous window; null for `all`, or if it took too long"}
    )
    points = ma.fields.List(ma.fields.Nested(PointOut), metadata={"description": "empty if it took too long"})


class OverviewFields(Schema):
    scope = ma.fields.String(required=True)
    window = ma.fields.String(required=True)
    step_s = ma.fields.Integer(metadata={"description": "the length of each point; the last ends now"})


OverviewOut = OverviewFields.from_dict(
    {metric.name: ma.fields.Nested(CountedOut) for metric in counted_metrics()}, name="OverviewOut"
)


@blueprint.get("")
@quiet
@requires(May.READ_BOARDS)
@conditional("If-None-Match")
@blueprint.arguments(OverviewIn, location="query")
@blueprint.response(200, OverviewOut)
def read_overview(query: dict[str, Any]) -> Response:
    """Views and likes in a window, in the previous one, and over time (for `all`: the last 90 days). `ETag` and 304.

    Slow answers are cached for a while: `Age` is the age in seconds.
    """
    board = board_for(current_reader(), {**query, "metric": VIEWS.name})
    if board.is_global:
        raise Invalid.field("scope", "tenant, space:<key>, public or public:<key>")

    def compute() -> tuple[Answer, bool]:
        actor, now = current_actor(), utcnow()
        limit = throttle.per_minute(READS_PER_MINUTE)
        throttle.require("overview", limit, actor.tenant_id, actor.id, detail="Too many requests: try again later")
        with actor_tx() as tx:
            by_metric = {
                metric.name: overviews.read(tx, replace(board, metric=metric), now=now) for metric in counted_metrics()
            }
            space_exists = board.scope_key is None or pages.has_space(tx, board.scope_key)
        step_s = int(board.window.trend_step.total_seconds())
        content = {"scope": board.scope, "window": board.window, "step_s": step_s, **by_metric}
        # Cache only spaces that exist: callers can name any number of others.
        return Answer.of(orjson.dumps(content, option=orjson.OPT_UTC_Z), version=0), space_exists

    answer, age_s = _cache.get(board, compute)
    response = if_changed(answer)
    response.headers["Age"] = str(ceil(age_s))  # 0: computed now
    return response


@dataclass(frozen=True)
class _Entry:
    answer: Answer
    computed_at: float
    valid_until: float


@dataclass
class _Computation:
    lock: threading.Lock = field(default_factory=threading.Lock)
    callers: int = 0


class _OverviewCache:
    """Slow answers, each cached in proportion to its cost. Concurrent callers share one computation.

    Each tenant has its own bound: the answers read last stay, and no tenant evicts another's.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._answers: OrderedDict[str, OrderedDict[Board, _Entry]] = OrderedDict()
        self._computing: dict[Board, _Computation] = {}

    def get(self, board: Board, compute: Callable[[], tuple[Answer, bool]]) -> tuple[Answer, float]:
        """The answer, and how many seconds old it is. `compute` also returns whether its answer may be cached."""
        with self._turn(board):
            began = time.monotonic()
            entry = self._find(board)
            if entry is not None and began < entry.valid_until:
                return entry.answer, began - entry.computed_at
            answer, may_be_cached = compute()
            took_s = time.monotonic() - began
            if may_be_cached and took_s >= QUICK_S:
                self._store(board, _Entry(answer, began, began + took_s * MAX_AGE_PER_COST))
            return answer, 0.0

    def sizes(self) -> dict[str, int]:
        """How many answers are cached for each tenant."""
        with self._lock:
            return {tenant_id: len(answers) for tenant_id, answers in self._answers.items()}

    @contextmanager
    def _turn(self, board: Board) -> Iterator[None]:
        """One caller at a time for each board. Its lock exists as long as somebody uses it."""
        with self._lock:
            computation = self._computing.setdefault(board, _Computation())
            computation.callers += 1
        try:
            with computation.lock:
                yield
        finally:
            with self._lock:
                computation.callers -= 1
                if not computation.callers:
                    del self._computing[board]

    def _find(self, board: Board) -> _Entry | None:
        with self._lock:
            of_tenant = self._answers.get(board.tenant_id)
            if of_tenant is None or board not in of_tenant:
                return None
            self._answers.move_to_end(board.tenant_id)
            of_tenant.move_to_end(board)
            return of_tenant[board]

    def _store(self, board: Board, entry: _Entry) -> None:
        with self._lock:
            of_tenant = self._answers.setdefault(board.tenant_id, OrderedDict())
            self._answers.move_to_end(board.tenant_id)
            of_tenant[board] = entry
            of_tenant.move_to_end(board)
            if len(of_tenant) > MAX_ANSWERS_PER_TENANT:
                of_tenant.popitem(last=False)
            if len(self._answers) > MAX_TENANTS:
                self._answers.popitem(last=False)


_cache = _OverviewCache()
