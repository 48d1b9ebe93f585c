"""What a tenant, or one of its spaces, got in all."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import ceil
from typing import Any

import marshmallow as ma
import orjson
from flask import Response

from analytics.boards import series
from analytics.boards.names import Board
from analytics.ingest import pages
from analytics.metrics import VIEWS, counted_metrics
from analytics.windows import Window
from app.api.blueprint import Blueprint, Schema
from app.api.pages import PointOut
from app.http.answer_cache import Answer
from app.http.auth import current_actor, current_reader
from app.http.boards import board_for
from app.http.conditional import if_changed
from app.http.edge import quiet
from app.http.rights import May, requires
from app.http.transactions import actor_tx
from tenants import throttle
from tenants.db import utcnow
from tenants.errors import Invalid

blueprint = Blueprint("overview", __name__, url_prefix="/api/v1/overview", description="Totals and trends")

# Of those that have to be made, for each caller.
READS_PER_MINUTE = 300
# What is quick is made anew, so that nobody is shown what was before a change; of the rest, a tenth of a core's time.
QUICK_S = 0.1
TIMES_ITS_COST = 10
MAX_KEPT_OF_A_TENANT = 100
MAX_TENANTS_KEPT = 1_000


class OverviewIn(Schema):
    scope = ma.fields.String(
        validate=ma.validate.Length(1, 80),
        metadata={
            "description": "tenant, space:<key>, public or public:<key>; tenant, or public for those who see public"
            " pages only"
        },
    )
    window = ma.fields.Enum(Window, by_value=True, load_default=Window.WEEK)


class CountedOut(Schema):
    total = ma.fields.Integer(required=True)
    previous = ma.fields.Integer(
        allow_none=True, metadata={"description": "in the window before; null for `all`, or if it took too long"}
    )
    points = ma.fields.List(ma.fields.Nested(PointOut), metadata={"description": "none if it took too long"})


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
@blueprint.arguments(OverviewIn, location="query")
@blueprint.alt_response(200, schema=OverviewOut, success=True)
def read_overview(query: dict[str, Any]) -> Response:
    """Views and likes in a window, in the one before, and over time (for `all`: the last 90 days). `ETag` and 304.

    What takes long to make is kept for a while: `Age` says how old it is.
    """
    board = board_for(current_reader(), {**query, "metric": VIEWS.name})
    if board.is_global:
        raise Invalid.field("scope", "tenant, space:<key>, public or public:<key>")

    def make() -> tuple[Answer, bool]:
        actor, now = current_actor(), utcnow()
        limit = throttle.per_minute(READS_PER_MINUTE)
        throttle.require("overview", limit, actor.tenant_id, actor.id, detail="Too many in a minute: try again later")
        with actor_tx() as tx:
            found = {
                metric.name: series.overview(
                    tx, metric, board.window, space=board.scope_key, public_only=board.is_public, now=now
                )
                for metric in counted_metrics()
            }
            is_known = board.scope_key is None or pages.has_space(tx, board.scope_key)
        step_s = int(board.window.trend_step.total_seconds())
        told = {"scope": board.scope, "window": board.window, "step_s": step_s, **found}
        # Anybody can make up spaces: what is kept is of those that there are.
        return Answer.of(orjson.dumps(told, option=orjson.OPT_UTC_Z), version=0), is_known

    answer, age_s = _kept.get(board, make)
    response = if_changed(answer)
    response.headers["Age"] = str(ceil(age_s))  # 0: it is as of now
    return response


@dataclass(frozen=True)
class _Entry:
    answer: Answer
    made_at: float
    until: float


@dataclass
class _Making:
    lock: threading.Lock = field(default_factory=threading.Lock)
    wanted_by: int = 0


class _Kept:
    """Answers that cost something, each kept the longer the more it did, and made by one of those who ask at once.

    Each tenant has a number of its own: the answers read last stay, and no tenant takes another's place.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[str, OrderedDict[Board, _Entry]] = OrderedDict()
        self._making: dict[Board, _Making] = {}

    def get(self, board: Board, make: Callable[[], tuple[Answer, bool]]) -> tuple[Answer, float]:
        """The answer, and how many seconds old it is. `make` also says whether its answer may be kept."""
        with self._turn(board):
            began = time.monotonic()
            known = self._find(board)
            if known is not None and began < known.until:
                return known.answer, began - known.made_at
            answer, may_be_kept = make()
            took_s = time.monotonic() - began
            if may_be_kept and took_s >= QUICK_S:
                self._keep(board, _Entry(answer, began, began + took_s * TIMES_ITS_COST))
            return answer, 0.0

    def sizes(self) -> dict[str, int]:
        """How many are kept of each tenant."""
        with self._lock:
            return {tenant_id: len(answers) for tenant_id, answers in self._known.items()}

    @contextmanager
    def _turn(self, board: Board) -> Iterator[None]:
        """One at a time for each board. Its lock is there as long as somebody wants it."""
        with self._lock:
            making = self._making.setdefault(board, _Making())
            making.wanted_by += 1
        try:
            with making.lock:
                yield
        finally:
            with self._lock:
                making.wanted_by -= 1
                if not making.wanted_by:
                    del self._making[board]

    def _find(self, board: Board) -> _Entry | None:
        with self._lock:
            known = self._known.get(board.tenant_id)
            if known is None or board not in known:
                return None
            self._known.move_to_end(board.tenant_id)
            known.move_to_end(board)
            return known[board]

    def _keep(self, board: Board, entry: _Entry) -> None:
        with self._lock:
            known = self._known.setdefault(board.tenant_id, OrderedDict())
            self._known.move_to_end(board.tenant_id)
            known[board] = entry
            known.move_to_end(board)
            if len(known) > MAX_KEPT_OF_A_TENANT:
                known.popitem(last=False)
            if len(self._known) > MAX_TENANTS_KEPT:
                self._known.popitem(last=False)


_kept = _Kept()
