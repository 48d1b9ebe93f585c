"""Corrections of scores, by admins."""

from typing import Any

import marshmallow as ma

from analytics.metrics import user_metrics
from analytics.scores import corrections
from app.api.blueprint import Blueprint, Schema
from app.api.users import resolve
from app.http.auth import current_actor
from app.http.rights import May, requires
from app.http.transactions import actor_tx, audit, idempotent
from tenants.db import utcnow
from tenants.security_events import SecurityEvent

blueprint = Blueprint("corrections", __name__, url_prefix="/api/v1", description="Scores")

ACCOUNTS = {source.account: metric for metric, source in user_metrics().items()}


class CorrectionIn(Schema):
    account = ma.fields.String(required=True, validate=ma.validate.OneOf(list(ACCOUNTS)))
    delta = ma.fields.Integer(
        required=True,
        strict=True,
        validate=[
            ma.validate.Range(-corrections.MAX_DELTA, corrections.MAX_DELTA),
            ma.validate.NoneOf([0], error="Must not be 0."),
        ],
        metadata={"description": "what is added; negative: taken"},
    )
    reason = ma.fields.String(
        required=True,
        validate=ma.validate.Length(corrections.MIN_REASON_CHARS, corrections.MAX_REASON_CHARS),
        metadata={"description": "the user sees it in the ledger"},
    )


class CorrectionOut(Schema):
    score = ma.fields.Integer(required=True, metadata={"description": "the account's balance after it"})
    delta = ma.fields.Integer(required=True)
    entry_id = ma.fields.Integer(required=True, metadata={"description": "the ledger entry"})
    account = ma.fields.String(required=True)


@blueprint.post("/users/<user>/corrections")
@requires(May.CORRECT_SCORES)
@idempotent
@blueprint.arguments(CorrectionIn)
@blueprint.response(201, CorrectionOut)
def correct_score(body: dict[str, Any], user: str) -> Any:
    """Add to a user's points, XP or reputation, or take from them: a ledger entry with a reason, never below 0."""
    actor = current_actor()
    with actor_tx() as tx:
        target = resolve(tx, user, actor)
        corrected = corrections.correct(
            tx,
            target.id,
            ACCOUNTS[body["account"]],
            body["delta"],
            reason=body["reason"],
            by=actor.caller,
            now=utcnow(),
        )
    audit(SecurityEvent.SCORE_CORRECTED, user=str(target.id), **corrected.logged())
    return corrected
