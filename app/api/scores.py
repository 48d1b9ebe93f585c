"""Scores: users claim actions, and each is paid once."""

from collections.abc import Callable, Mapping
from functools import partial, wraps
from typing import Any, TypeVar
from uuid import UUID

import marshmallow as ma
from flask import g, request
from flask.typing import ResponseReturnValue

from analytics.scores import actions, sources, tokens
from analytics.scores.actions import ActionClaim, ImpossibleTime, Verification
from app.api.blueprint import Blueprint, Schema
from app.http import event_writes
from app.http.auth import caller_address, current_actor
from app.http.edge import quiet
from app.http.rights import May, requires
from app.http.score_claims import claim_request, count_attempt, payment_answer, update_claim
from app.http.services import services
from app.http.transactions import after_refusal, idempotent
from tenants import allowances
from tenants.db import tenant_tx, utcnow
from tenants.errors import DomainError

View = TypeVar("View", bound=Callable[..., Any])

blueprint = Blueprint("scores", __name__, url_prefix="/api/v1/scores", description="Scores")


class SmallObject(ma.fields.Dict):
    """A JSON object with any content, up to a few kilobytes."""

    def _deserialize(self, value: Any, attr: str | None, data: Mapping[str, Any] | None, **kwargs: Any) -> Any:
        loaded = super()._deserialize(value, attr, data, **kwargs)  # type: ignore[no-untyped-call]
        error = actions.error_in_metadata(loaded)
        if error is not None:
            raise ma.ValidationError(error)
        return loaded


class UpdateIn(Schema):
    action_id = ma.fields.UUID(required=True, data_key="actionId")
    action_type = ma.fields.String(required=True, data_key="actionType", validate=ma.validate.Length(1, 64))
    wanted = ma.fields.Integer(
        strict=True,
        data_key="scoreDelta",
        validate=ma.validate.Range(min=1),
        metadata={"description": "at most the catalog's points; more is refused"},
    )
    timestamp = ma.fields.AwareDateTime(
        required=True, metadata={"description": "when the action was done, by the sender's clock"}
    )
    object = ma.fields.String(validate=ma.validate.Regexp(actions.OBJECT))
    metadata_ = SmallObject(data_key="metadata")
    client_info = SmallObject(data_key="clientInfo")
    ignored = ma.fields.Raw(data_key="userId", metadata={"description": "ignored: the user is the token's"})


class ClaimIn(Schema):
    action_token = ma.fields.String(required=True, validate=ma.validate.Length(1, 2048))
    score_delta = ma.fields.Integer(
        strict=True, metadata={"description": "from 1 to the token's max_points, which is the default"}
    )
    metadata_ = SmallObject(data_key="metadata")


class PaidOut(Schema):
    score = ma.fields.Integer(required=True)
    delta = ma.fields.Integer(required=True)
    rank = ma.fields.Integer(allow_none=True)
    event_id = ma.fields.UUID(allow_none=True)


def within_attempts(view: View) -> View:
    """Refuse a user's requests above the limit of attempts. Place it above `@idempotent`, which opens a transaction."""

    @wraps(view)
    def answer(*args: Any, **kwargs: Any) -> Any:
        actor = current_actor()
        count_attempt(request.environ, actor.tenant_id, actor.user_id)
        return view(*args, **kwargs)

    return answer  # type: ignore[return-value]


@blueprint.post("/update")
@quiet
@requires(May.ACT)
@within_attempts
@idempotent
@blueprint.arguments(UpdateIn)
@blueprint.response(200, PaidOut)
def update_score(body: dict[str, Any]) -> ResponseReturnValue:
    """Claim an action. The same actionId again gets the first answer; with another payload it is refused."""
    return pay(update_claim(current_actor().user_id, body, **_caller()))


@blueprint.patch("")
@quiet
@requires(May.ACT)
@within_attempts
@idempotent
@blueprint.arguments(ClaimIn)
@blueprint.response(200, PaidOut)
def claim(body: dict[str, Any]) -> ResponseReturnValue:
    """Claim the action of an action token. It is paid once."""
    actor, now = current_actor(), utcnow()
    claims = services().action_tokens.verify(body["action_token"], now=now)
    if claims.tenant != actor.tenant_id or claims.user != str(actor.user_id):
        raise tokens.BadActionToken("This action token belongs to another user")
    return pay(
        ActionClaim(
            UUID(claims.user),
            claims.action,
            source=sources.of_token(claims.id),
            verification=Verification.TOKEN,
            object=claims.object,
            max_points=claims.most,
            wanted_points=body.get("score_delta"),
            metadata=body.get("metadata_"),
            payload={"wanted": body.get("score_delta"), "metadata": body.get("metadata_")},
            token=claims,
            **_caller(),
        )
    )


def pay(claim: ActionClaim) -> ResponseReturnValue:
    tenant_id = current_actor().tenant_id
    write_request = claim_request(tenant_id, claim, request_id=g.request_id)
    event_writes.write(write_request)
    (paid,) = write_request.payments
    if isinstance(paid, ImpossibleTime) and _is_to_flag(tenant_id, claim):
        after_refusal(partial(_flag_impossible_time, tenant_id, claim))
    if isinstance(paid, DomainError):
        raise paid
    body, headers = payment_answer(paid)
    return body, 200, headers


def _is_to_flag(tenant_id: str, claim: ActionClaim) -> bool:
    """A claim from the future is flagged once a minute for a user: its flag needs a transaction of its own."""
    is_from_future = actions.is_from_future(claim, now=utcnow())
    return is_from_future and allowances.take_one("impossible-time", 1, tenant_id, str(claim.user)).is_allowed


def _flag_impossible_time(tenant_id: str, claim: ActionClaim) -> None:
    """Flag the refused claim, in a separate transaction."""
    with tenant_tx(tenant_id) as tx:
        actions.flag_impossible_time(tx, claim, now=utcnow())


def _caller() -> dict[str, Any]:
    return {"ip": caller_address(), "agent": request.headers.get("User-Agent")}
