"""The weights of the composite score."""

from typing import Any

import marshmallow as ma

from analytics.boards import preview, progress, summaries, weights
from analytics.boards.names import board_of
from analytics.boards.weights import ScoreWeights
from analytics.metrics import SCORE
from analytics.scoring import FORMULA, Weights
from analytics.windows import Window
from app.api.blueprint import Blueprint, Schema
from app.http.auth import current_actor
from app.http.conditional import conditional, expected_version
from app.http.rights import May, requires
from app.http.transactions import actor_tx, audit, idempotent
from tenants.db import Tx, utcnow
from tenants.errors import Invalid
from tenants.security_events import SecurityEvent

blueprint = Blueprint("weights", __name__, url_prefix="/api/v1/settings/weights", description="Weights of the score")


class StrictNumber(ma.fields.Float):
    """A number; no text or boolean instead."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> float:
        if isinstance(value, bool | str):
            raise self.make_error("invalid", input=value)
        return float(super()._deserialize(value, attr, data, **kwargs))


class WeightsIn(Schema):
    likes = StrictNumber(required=True, metadata={"description": "points for a like"})
    views = StrictNumber(required=True, metadata={"description": "points for ln(1 + views)"})
    effective_from = ma.fields.AwareDateTime(metadata={"description": "the default is now"})


class PreviewIn(Schema):
    likes = StrictNumber(required=True)
    views = StrictNumber(required=True)
    scope = ma.fields.String(load_default="tenant", validate=ma.validate.Length(1, 80))
    window = ma.fields.Enum(Window, by_value=True, load_default=Window.WEEK)
    limit = ma.fields.Integer(load_default=10, validate=ma.validate.Range(1, 100))


class VersionOut(Schema):
    version = ma.fields.Integer()
    state = ma.fields.String(metadata={"enum": ["current", "planned", "past", "overtaken"]})
    likes = ma.fields.Float()
    views = ma.fields.Float()
    effective_from = ma.fields.AwareDateTime(allow_none=True)
    created_at = ma.fields.AwareDateTime(allow_none=True)
    created_by = ma.fields.String(allow_none=True)


class ProgressOut(Schema):
    done = ma.fields.Integer()
    total = ma.fields.Integer()


class WeightsOut(VersionOut):
    formula = ma.fields.String()
    projected = ma.fields.Nested(
        ProgressOut, metadata={"description": "how many pages are scored by these weights, of all"}
    )
    history = ma.fields.List(ma.fields.Nested(VersionOut))


class MoveOut(Schema):
    rank = ma.fields.Integer()
    score = ma.fields.Float()
    rank_now = ma.fields.Integer(allow_none=True)
    score_now = ma.fields.Float()
    page = ma.fields.Dict(keys=ma.fields.String(), allow_none=True)


class PreviewOut(Schema):
    items = ma.fields.List(ma.fields.Nested(MoveOut))
    moved = ma.fields.Integer(metadata={"description": "how many rows of the board would change rank"})


@blueprint.get("")
@requires(May.MANAGE_SETTINGS)
@conditional()
@blueprint.response(200, WeightsOut)
def read_weights() -> Any:
    """The current weights, how far they have been applied, and every version. `ETag` is the newest version."""
    with actor_tx() as tx:
        return _answer(tx)


@blueprint.put("")
@requires(May.MANAGE_SETTINGS)
@idempotent
@conditional("If-Match")
@blueprint.arguments(WeightsIn)
@blueprint.response(200, WeightsOut)
def change_weights(body: dict[str, Any]) -> Any:
    """Add a version, from now or a later time; every score board is updated. `If-Match` is supported."""
    actor = current_actor()
    with actor_tx() as tx:
        weights.add(
            tx,
            likes=body["likes"],
            views=body["views"],
            effective_from=body.get("effective_from"),
            by=actor.caller,
            now=utcnow(),
            expected_version=expected_version(),
        )
        answer = _answer(tx)
    audit(SecurityEvent.WEIGHTS_CHANGED, likes=body["likes"], views=body["views"])
    return answer


@blueprint.post("/preview")
@requires(May.MANAGE_SETTINGS)
@idempotent
@blueprint.arguments(PreviewIn)
@blueprint.response(200, PreviewOut)
def preview_weights(body: dict[str, Any]) -> Any:
    """How ranks would change with these weights. Changes nothing."""
    weights.check(likes=body["likes"], views=body["views"])
    board = board_of(current_actor().tenant_id, body["scope"], body["window"], SCORE.name)
    if board.is_global:
        raise Invalid.field("scope", "not the global boards: each tenant has its own weights")
    with actor_tx() as tx:
        proposed = Weights(likes=body["likes"], views=body["views"])
        moves, moved = preview.of_board(tx, board, proposed, limit=body["limit"])
    pages = summaries.of_subjects(board, [move.page_id for move in moves])
    return {
        "moved": moved,
        "items": [
            {
                "rank": move.rank,
                "score": move.score,
                "rank_now": move.rank_now,
                "score_now": move.score_now,
                "page": {"id": int(move.page_id), **pages[move.page_id]} if move.page_id in pages else None,
            }
            for move in moves
        ],
    }


def _version(row: ScoreWeights, current: Weights) -> dict[str, Any]:
    """A future version is `planned`, or `overtaken` if a newer one applies already."""
    if row.effective_from > utcnow():
        state = "planned" if row.version > current.version else "overtaken"
    else:
        state = "current" if row.version == current.version else "past"
    names = ("version", "likes", "views", "effective_from", "created_at", "created_by")
    return {**{name: getattr(row, name) for name in names}, "state": state}


def _answer(tx: Tx) -> tuple[dict[str, Any], int, dict[str, str]]:
    current, history = weights.current(tx, now=utcnow()), weights.history(tx)
    row: ScoreWeights | None = next((row for row in history if row.version == current.version), None)
    done, total = progress.reweighing(tx, current)
    answer = {
        "version": current.version,
        "state": "current",
        "likes": current.likes,
        "views": current.views,
        "effective_from": row.effective_from if row is not None else None,
        "created_at": row.created_at if row is not None else None,
        "created_by": row.created_by if row is not None else None,
        "formula": FORMULA,
        "projected": {"done": done, "total": total},
        "history": [_version(row, current) for row in history],
    }
    newest = history[0].version if history else 0
    return answer, 200, {"ETag": f'"{newest}"'}
