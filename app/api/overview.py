"""What a tenant, or one of its spaces, got in all."""

import threading
import time
from collections.abc import Callable
from math import ceil
from typing import Any

import marshmallow as ma
import orjson
from flask import Response

from analytics import series
from analytics.boards import ALL_TENANTS, Board, Metric
from analytics.series import Counted
from analytics.windows import Window
from app.api.blueprint import Blueprint, Schema
from app.api.pages import PointOut
from app.auth import May, current_actor, current_reader, requires
from app.board_shelf import Answer
from app.conditional import if_changed
from app.shown_boards import board_for
from app.transactions import actor_tx
from tenants import throttle
from tenants.db import utcnow
from tenants.errors import Invalid

blueprint = Blueprint("overview", __name__, url_prefix="/api/v1/overview", description="Totals and trends")

# Of those that have to be made, for each caller.
READS_PER_MINUTE = 300
# What is quick is made anew, so that nobody is shown what was before a change; of the rest, a tenth of a core's time.
QUICK_S = 0.1
TIMES_ITS_COST = 10
MOST_KEPT = 5_000


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


class OverviewOut(Schema):
    scope = ma.fields.String(required=True)
    window = ma.fields.String(required=True)
    step_s = ma.fields.Integer(metadata={"description": "how long each point is; the last is up to now"})
    views = ma.fields.Nested(CountedOut)
    likes = ma.fields.Nested(CountedOut)


@blueprint.get("")
@requires(May.READ_BOARDS)
@blueprint.arguments(OverviewIn, location="query")
@blueprint.alt_response(200, schema=OverviewOut, success=True)
def read_overview(query: dict[str, Any]) -> Response:
    """Views and likes in a window, in the one before, and over time (for `all`: the last 90 days). `ETag` and 304.

    What takes long to make is kept for a while: `Age` says how old it is.
    """
    board = board_for(current_reader(), {**query, "metric": Metric.VIEWS})
    if board.tenant_id == ALL_TENANTS:
        said = "tenant, space:<key>, public or public:<key>"
        raise Invalid(f"scope: {said}", errors={"scope": [said]})

    def make() -> Answer:
        actor, now = current_actor(), utcnow()
        limit = throttle.per_minute(READS_PER_MINUTE)
        throttle.require("overview", limit, actor.tenant_id, actor.id, detail="Too many in a minute: try again later")
        with actor_tx() as tx:
            found = {
                counted.value: series.overview(
                    tx, counted, board.window, space=board.part, public_only=board.is_public, now=now
                )
                for counted in Counted
            }
        step_s = int(series.OVERVIEW_STEP[board.window].total_seconds())
        told = {"scope": board.scope, "window": board.window, "step_s": step_s, **found}
        return Answer.of(orjson.dumps(told, option=orjson.OPT_UTC_Z), version=0)

    answer, age_s = _kept.get(board, make)
    response = if_changed(answer)
    response.headers["Age"] = str(ceil(age_s))  # 0: it is as of now
    return response


class _Kept:
    """Answers that cost something, each kept the longer the more it did, and made by one of those who ask at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[Board, tuple[float, float, Answer]] = {}
        self._making: dict[Board, threading.Lock] = {}

    def get(self, board: Board, make: Callable[[], Answer]) -> tuple[Answer, float]:
        """The answer, and how many seconds old it is."""
        with self._lock:
            if len(self._making) >= MOST_KEPT:
                self._known.clear()
                self._making.clear()
            making = self._making.setdefault(board, threading.Lock())
        with making:
            made_at, until, answer = self._known.get(board) or (0.0, 0.0, None)
            began = time.monotonic()
            if answer is not None and began < until:
                return answer, began - made_at
            answer = make()
            took_s = time.monotonic() - began
            if took_s >= QUICK_S:
                with self._lock:
                    self._known[board] = (began, began + took_s * TIMES_ITS_COST, answer)
            return answer, 0.0


_kept = _Kept()
