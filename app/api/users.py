"""The users of a tenant, for its admins and for themselves."""

from datetime import datetime
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

import marshmallow as ma
from flask.typing import ResponseReturnValue

from analytics import user_changes
from analytics.metrics import user_metrics
from analytics.scores import audit as action_audit
from analytics.scores import ledger
from app.api.blueprint import SOMETIMES, Blueprint, Schema, SliceIn, StrictBoolean, matching
from app.api.email_changes import confirms_email
from app.http import paging
from app.http.auth import Actor, current_actor
from app.http.boards import sees_names
from app.http.rights import InsufficientScope, May, requires
from app.http.services import services
from app.http.transactions import actor_tx, audit, idempotent
from tenants import logs, profiles, registry, resets, suspensions, throttle, users
from tenants import settings as tenant_settings
from tenants.db import Tx, utcnow
from tenants.errors import Conflict, Forbidden, Invalid
from tenants.security_events import SecurityEvent
from tenants.segments import MAX_SEGMENTS, SEGMENT
from tenants.settings import VisiblePages
from tenants.users import Role, User

blueprint = Blueprint("users", __name__, url_prefix="/api/v1", description="Users")


class SuspensionEnd(ma.fields.AwareDateTime):
    """When a user's suspension ends, while it is in effect."""

    def get_value(self, obj: Any, attr: str, accessor: Any = None, default: Any = None) -> Any:  # noqa: ARG002
        return suspensions.end_of(obj, now=utcnow())


class UserOut(Schema):
    id = ma.fields.UUID(required=True)
    external_id = ma.fields.String(allow_none=True)
    username = ma.fields.String(allow_none=True)
    email = ma.fields.String(allow_none=True)
    role = ma.fields.String(metadata={"enum": [role.value for role in Role]})
    suspended = ma.fields.Function(
        lambda user: suspensions.is_suspended(user, now=utcnow()), metadata={"type": "boolean"}
    )
    suspended_until = SuspensionEnd(allow_none=True)
    segment = ma.fields.String(allow_none=True, metadata={"description": "the first of segments"})
    segments = ma.fields.List(ma.fields.String())
    display_name = ma.fields.String(allow_none=True)
    avatar_url = ma.fields.String(allow_none=True)
    bio = ma.fields.String(allow_none=True)
    wallet = ma.fields.String(allow_none=True)
    email_verified = ma.fields.Boolean()
    sees_private = ma.fields.Boolean(
        allow_none=True,
        metadata={
            "description": "whether a member sees private pages whatever signup_sees is; for the user and admins"
        },
    )
    score = ma.fields.Integer(attribute="current_score")
    total_actions = ma.fields.Integer()
    reputation = ma.fields.Integer()
    experience_points = ma.fields.Integer()
    quests_created = ma.fields.Integer()
    quests_completed = ma.fields.Integer()
    attestations_given = ma.fields.Integer()
    attestations_received = ma.fields.Integer()
    created_at = ma.fields.AwareDateTime()
    updated_at = ma.fields.AwareDateTime()


class NamedUserOut(Schema):
    """Who it is, in lists of something else."""

    id = ma.fields.UUID(required=True)
    external_id = ma.fields.String(allow_none=True)
    username = ma.fields.String(allow_none=True)
    display_name = ma.fields.String(allow_none=True)
    avatar_url = ma.fields.String(allow_none=True)


class UsersIn(SliceIn):
    q = ma.fields.String(
        validate=ma.validate.Length(1, 128),
        metadata={"description": "the beginning of a username, e-mail address or external id"},
    )


class UsersOut(Schema):
    items = ma.fields.List(ma.fields.Nested(UserOut))
    next_cursor = ma.fields.String(allow_none=True)


class ProfileIn(Schema):
    display_name = ma.fields.String(
        allow_none=True, metadata={"description": profiles.DISPLAY_NAME, "maxLength": profiles.MAX_NAME_CHARS}
    )
    avatar_url = ma.fields.String(allow_none=True, validate=ma.validate.Length(max=profiles.MAX_URL_CHARS))
    segments = ma.fields.List(
        ma.fields.String(),
        validate=ma.validate.Length(max=MAX_SEGMENTS),
        metadata={"description": "each has a board of its own, users:<segment>"},
    )


class UserChangeIn(ProfileIn):
    role = ma.fields.String(validate=ma.validate.OneOf([role.value for role in Role]))
    suspended = StrictBoolean()
    suspended_until = ma.fields.AwareDateTime(
        allow_none=True, metadata={"description": "when a suspension ends by itself; null: when it is lifted"}
    )
    segment = ma.fields.String(
        allow_none=True,
        metadata=matching(SEGMENT, description="replaces the first of segments; null removes them all"),
    )
    external_id = ma.fields.String(
        allow_none=True,
        metadata=matching(
            users.EXTERNAL_ID, description="your own id for a user who logs in here; events refer to them by it"
        ),
    )
    bio = ma.fields.String(allow_none=True, validate=ma.validate.Length(max=1000))
    wallet = ma.fields.String(
        allow_none=True,
        validate=ma.validate.Length(max=128),
        metadata={"description": "0x and 40 hex digits; upper and lower case mixed are a checksum (EIP-55)"},
    )
    username = ma.fields.String(metadata={"description": "3 to 50 of A-Z, a-z, 0-9 and _"})
    email = ma.fields.String(metadata={"description": "a new address is not verified; one's own needs the password"})
    password = ma.fields.String(
        metadata={"description": "one's own, where one's own e-mail address changes", "format": "password"}
    )
    email_verified = StrictBoolean()
    sees_private = StrictBoolean(
        metadata={"description": "whether a member sees private pages whatever the setting signup_sees is"}
    )


class ResetTokenOut(Schema):
    reset_token = ma.fields.String(required=True)
    expires_at = ma.fields.AwareDateTime()


class MeOut(Schema):
    kind = ma.fields.String(required=True, metadata={"enum": ["client", "user"]})
    tenant = ma.fields.String(required=True)
    tenant_name = ma.fields.String(metadata=SOMETIMES)
    id = ma.fields.String(required=True)
    scopes = ma.fields.List(ma.fields.String(), metadata={"description": "of a client or a static token", **SOMETIMES})
    roles = ma.fields.List(ma.fields.String(), metadata={"description": "of a user", **SOMETIMES})
    sees = ma.fields.Enum(VisiblePages, by_value=True, metadata={"description": "which pages the caller may see"})
    must_change_password = ma.fields.Boolean(
        metadata={"description": "of a user: whether all else is refused until then", **SOMETIMES}
    )
    user = ma.fields.Nested(UserOut, metadata=SOMETIMES)


class EntryOut(Schema):
    id = ma.fields.Integer()
    source = ma.fields.String()
    account = ma.fields.String(metadata={"enum": [ledger_.account for ledger_ in user_metrics().values()]})
    action_type = ma.fields.String(allow_none=True)
    delta = ma.fields.Integer()
    previous = ma.fields.Integer()
    score = ma.fields.Integer()
    at = ma.fields.AwareDateTime()
    event_id = ma.fields.UUID(allow_none=True)
    reverses = ma.fields.Integer(allow_none=True, metadata={"description": "the entry that this one reverses"})
    reason = ma.fields.String(allow_none=True, metadata={"description": "of a correction by an admin"})


class LedgerOut(Schema):
    items = ma.fields.List(ma.fields.Nested(EntryOut))
    next_cursor = ma.fields.String(allow_none=True)


class ActionEventOut(Schema):
    id = ma.fields.UUID()
    received_at = ma.fields.AwareDateTime()
    action_type = ma.fields.String()
    verification = ma.fields.String()
    client_time = ma.fields.AwareDateTime(allow_none=True)
    points = ma.fields.Integer()
    object = ma.fields.String(allow_none=True)
    ip = ma.fields.String(allow_none=True)
    agent = ma.fields.String(allow_none=True)
    client_info = ma.fields.Dict(allow_none=True)
    metadata = ma.fields.Dict(attribute="metadata_", allow_none=True)


class ActionsOut(Schema):
    items = ma.fields.List(ma.fields.Nested(ActionEventOut))
    next_cursor = ma.fields.String(allow_none=True)


# Fields whose new value is in the audit line; of other changed fields only the name.
RIGHTS = frozenset({"role", "suspended", "segment", "segments", "sees_private"})
# What members may change of themselves.
OWN_PROFILE = frozenset({"display_name", "avatar_url", "bio", "wallet", "email"})
EMAILS_PER_MINUTE = throttle.per_minute(5)


class OwnRights(Conflict):
    code = "own_rights"
    title = "Admins cannot remove their own rights"


class OwnPassword(Forbidden):
    code = "own_password"
    title = "Change your own password with POST /api/v1/auth/password, which asks for the old one"


class AdminsOnly(Forbidden):
    code = "admins_only"
    title = "Only an admin may change this"


@blueprint.get("/me")
@requires(May.SEE_ONESELF)
@blueprint.response(200, MeOut)
def me() -> Any:
    """Who the caller is."""
    actor = current_actor()
    answer: dict[str, Any] = {"kind": actor.kind, "tenant": actor.tenant_id, "id": actor.id}
    answer["sees"] = VisiblePages.PUBLIC if actor.public_only else VisiblePages.ALL
    if actor.kind == "client":
        return {**answer, "scopes": sorted(actor.scopes)}
    with actor_tx() as tx:
        user = users.get(tx, actor.user_id)
        tenant = registry.get(tx, actor.tenant_id)
    if actor.static_token_id:
        answer["scopes"] = sorted(actor.scopes)
    answer |= {"tenant_name": tenant.name, "roles": [actor.role], "user": user}
    return {**answer, "must_change_password": actor.must_change_password}


@blueprint.get("/users")
@requires(May.MANAGE_USERS)
@blueprint.arguments(UsersIn, location="query")
@blueprint.response(200, UsersOut)
def list_users(query: dict[str, Any]) -> Any:
    """All users, newest first."""
    asked = paging.slice_of(query, created_at=datetime, id=UUID)
    with actor_tx() as tx:
        rows = users.search(tx, q=query.get("q"), after=asked.after, limit=asked.fetch)
    return asked.answer(rows)


@blueprint.get("/users/<user>")
@requires(May.READ_USERS)
@blueprint.response(200, UserOut)
def get_user(user: str) -> Any:
    """One user: our id, `ext:<external_id>`, or `me`.

    Only the user and admins see the e-mail address and `sees_private`; strangers see a name and a picture only if the
    tenant's setting `public_names` is on.
    """
    actor = current_actor()
    with actor_tx() as tx:
        target = shown_to(actor, tx, resolve(tx, user, actor))
    is_own = actor.kind == "user" and target.id == actor.user_id
    if actor.public_only and not is_own:  # a tenant's own id for a user may be an e-mail address
        if user.startswith("ext:"):
            raise users.UserNotFound
        target.external_id = None
        if not sees_names(actor.reader):
            target.display_name = target.avatar_url = None
    return target


@blueprint.patch("/users/<user>")
@requires(May.CHANGE_PROFILES)
@confirms_email
@idempotent
@blueprint.arguments(UserChangeIn)
@blueprint.response(200, UserOut)
def change_user(changes: dict[str, Any], user: str) -> Any:
    """Set a user's role, segment, names, profile, what they see, or suspend them: their sessions end at once.

    A suspension ends at `suspended_until`, or when it is lifted. Members change their own `display_name`,
    `avatar_url`, `bio`, `wallet` and `email`. Who changes their own `email` confirms it with their `password`.
    """
    actor, now = current_actor(), utcnow()
    changes.pop("password", None)  # checked by then
    if not actor.is_admin:
        _require_own_profile(user, changes, actor)
        if "email" in changes:  # the answer says whether somebody has the address
            key = (actor.tenant_id, actor.id)
            throttle.require("email", EMAILS_PER_MINUTE, *key, detail="Too many changes of the address in a minute")
        if changes.get("avatar_url") is not None:
            _require_picture_host(changes["avatar_url"], actor.tenant_id)
    with actor_tx() as tx:
        target = resolve(tx, user, actor)
        own = actor.kind == "user" and target.id == actor.user_id
        if own and (changes.get("suspended") or changes.get("role") == Role.MEMBER):
            raise OwnRights
        changed = user_changes.change_user(tx, target, changes, now=now)
    rights = {name: value for name, value in changes.items() if name in RIGHTS}
    if "suspended_until" in changes:
        rights["suspended_until"] = str(changes["suspended_until"])
    audit(SecurityEvent.USER_CHANGED, user=str(target.id), changed=sorted(changes), **rights)
    return changed


def _require_picture_host(url: str, tenant_id: str) -> None:
    """Browsers of all readers load the picture: a member could have their addresses sent to any host."""
    hosts = tenant_settings.recent(tenant_id).picture_hosts
    if profiles.is_picture_url(url) and urlsplit(url).hostname not in hosts:
        allowed = f"one of {', '.join(hosts)}" if hosts else "none so far"
        raise Invalid.field("avatar_url", f"its host must be one that an admin has allowed in picture_hosts: {allowed}")


@blueprint.post("/users/<user>/password-reset")
@requires(May.RESET_PASSWORDS)
@blueprint.response(201, ResetTokenOut)
def offer_reset(user: str) -> ResponseReturnValue:
    """A token for setting a new password, valid once and for an hour. Send it to the user yourself."""
    with actor_tx() as tx:
        target = resolve(tx, user, current_actor())
        if current_actor().id == str(target.id):  # a stolen session must not be enough to take the account over
            raise OwnPassword
        by_admin, signer = current_actor().is_admin, services().signer
        token, expires_at = resets.create(tx, target, by_admin=by_admin, signer=signer, now=utcnow())
    logs.audit(SecurityEvent.PASSWORD_RESET_OFFERED, user=str(target.id))
    return {"reset_token": token, "expires_at": expires_at}


@blueprint.get("/users/<user>/ledger")
@requires(May.SEE_SCORES)
@blueprint.arguments(SliceIn, location="query")
@blueprint.response(200, LedgerOut)
def read_ledger(query: dict[str, Any], user: str) -> Any:
    """Every change of a user's score, newest first. Members see their own."""
    asked = paging.slice_of(query, id=int)
    with actor_tx() as tx:
        target = resolve_permitted(tx, user)
        entries = ledger.of_user(tx, target.id, before=asked.after, limit=asked.fetch)
    return asked.answer(entries)


@blueprint.get("/users/<user>/actions")
@requires(May.HANDLE_PERSONAL_DATA)
@blueprint.arguments(SliceIn, location="query")
@blueprint.response(200, ActionsOut)
def read_actions(query: dict[str, Any], user: str) -> Any:
    """The audit of a user's actions, newest first, as long as it is kept. Members see their own."""
    asked = paging.slice_of(query, received_at=datetime, id=UUID)
    with actor_tx() as tx:
        target = resolve_permitted(tx, user)
        rows = action_audit.of_user(tx, target.id, before=asked.after, limit=asked.fetch)
    return asked.answer(rows)


def _require_own_profile(reference: str, changes: dict[str, Any], actor: Actor) -> None:
    """Raise unless a member changes themselves, and only what is theirs to say."""
    if reference not in {"me", actor.id}:
        raise InsufficientScope(May.MANAGE_USERS)
    refused = sorted(changes.keys() - OWN_PROFILE)
    if refused:
        raise AdminsOnly.fields(dict.fromkeys(refused, "only an admin may change it"))


def shown_to(actor: Actor, tx: Tx, user: User) -> User:
    """The user as an answer shows them. What is blanked, here or by the caller, is not written."""
    tx.expunge(user)
    if not actor.is_admin and not (actor.kind == "user" and user.id == actor.user_id):
        user.email = None
        user.sees_private = None  # type: ignore[assignment]
    return user


def resolve_permitted(tx: Tx, reference: str) -> User:
    """The user a path names. For a member, other users do not exist."""
    actor = current_actor()
    target = resolve(tx, reference, actor)
    if actor.kind == "user" and not actor.is_admin and target.id != actor.user_id:
        raise users.UserNotFound
    return target


def resolve(tx: Tx, reference: str, actor: Actor) -> User:
    """The user a path names."""
    return users.get(tx, actor.user_id) if reference == "me" else users.find(tx, reference)
