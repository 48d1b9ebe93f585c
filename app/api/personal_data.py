"""All data about a user: to read, and to erase."""

from collections.abc import Iterator
from typing import Any

import marshmallow as ma
import orjson
from flask import Response

from analytics import privacy, redaction
from app.api.blueprint import Blueprint, Schema
from app.api.users import resolve_permitted
from app.http.auth import current_actor
from app.http.rights import May, requires
from app.http.services import services
from app.http.transactions import actor_tx, after_commit, again_after_deadlock, audit, idempotent
from tenants import logs
from tenants.db import Tx, utcnow
from tenants.errors import Forbidden
from tenants.security_events import SecurityEvent
from tenants.users import Role, User, UserNotFound

blueprint = Blueprint("personal_data", __name__, url_prefix="/api/v1/users", description="Personal data")


class ExportOut(Schema):
    """All data about a user. A later release may have more."""

    class Meta:
        unknown = ma.INCLUDE

    profile = ma.fields.Dict(keys=ma.fields.String())
    likes = ma.fields.List(ma.fields.Dict(keys=ma.fields.String()))
    pages_owned = ma.fields.List(ma.fields.String())
    sessions = ma.fields.List(ma.fields.Dict(keys=ma.fields.String()))
    static_tokens = ma.fields.List(ma.fields.Dict(keys=ma.fields.String()))
    ledger = ma.fields.List(ma.fields.Dict(keys=ma.fields.String()))
    actions = ma.fields.List(ma.fields.Dict(keys=ma.fields.String()))
    integrity_flags = ma.fields.List(ma.fields.Dict(keys=ma.fields.String()))


class ErasedOut(Schema):
    """What was erased."""

    id = ma.fields.UUID()
    erased_at = ma.fields.AwareDateTime()
    likes = ma.fields.Integer()
    sessions = ma.fields.Integer()
    pages_owned = ma.fields.Integer()
    quests = ma.fields.Integer()
    audit_rows = ma.fields.Integer()


@blueprint.get("/<user>/export")
@requires(May.HANDLE_PERSONAL_DATA)
@blueprint.response(200, ExportOut)
def export_user(user: str) -> Response:
    """All data about a user."""
    actor = current_actor()

    def start() -> Iterator[bytes]:
        with actor_tx() as tx:
            target = find_person(tx, user)
            if target.role == Role.ADMIN and not actor.is_admin:
                raise Forbidden("Only an admin may see all data about an admin")
            data = privacy.export(tx, target)
        logs.audit(SecurityEvent.USER_EXPORTED, user=str(target.id))
        return iter([orjson.dumps(data, option=orjson.OPT_UTC_Z, default=str)])

    return Response(
        services().exports.begin(actor.tenant_id, start, stranger=str(actor.id) if actor.public_only else None),
        content_type="application/json",
        headers={"Content-Disposition": 'attachment; filename="plaudit-user.json"'},
    )


@blueprint.delete("/<user>")
@requires(May.HANDLE_PERSONAL_DATA)
@again_after_deadlock
@idempotent
@blueprint.response(200, ErasedOut)
def erase_user(user: str) -> Any:
    """Erase a user's personal data and likes. The ledger stays, under an id that identifies nobody."""
    actor = current_actor()
    with actor_tx() as tx:
        erased = privacy.erase(tx, find_person(tx, user), by_admin=actor.is_admin, now=utcnow())
    after_commit(lambda: redaction.begin(actor.tenant_id, erased.user_id))
    audit(SecurityEvent.USER_ERASED, user=str(erased.user_id))
    return {
        "id": erased.user_id,
        "erased_at": erased.at,
        "likes": erased.likes,
        "sessions": erased.sessions,
        "pages_owned": erased.pages_owned,
        "quests": erased.quests,
        "audit_rows": erased.audit_rows,
    }


def find_person(tx: Tx, reference: str) -> User:
    """The user a path names, or the reader whom only views know. For a member, others do not exist."""
    actor = current_actor()
    try:
        return resolve_permitted(tx, reference)
    except UserNotFound:
        if not reference.startswith("ext:") or (actor.kind == "user" and not actor.is_admin):
            raise
        return privacy.ensure_reader(tx, reference.removeprefix("ext:"), now=utcnow())
