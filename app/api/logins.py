"""End users: register, log in, refresh, log out, their sessions, and forgotten passwords."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any, TypeVar
from uuid import UUID

import marshmallow as ma
from flask.typing import ResponseReturnValue

from app.api.blueprint import SOMETIMES, Blueprint, Schema, matching
from app.api.users import UserOut
from app.http import password_attempts
from app.http.auth import caller_address, caller_network, current_actor
from app.http.password_attempts import WrongPassword, require_few_of_network
from app.http.rights import May, public, requires
from app.http.services import services
from app.http.transactions import actor_tx, audit, idempotent
from tenants import logs, passwords, registry, resets, session_use, sessions, suspensions, throttle, users
from tenants import settings as tenant_settings
from tenants.db import TENANT_ID, Tx, tenant_tx, utcnow
from tenants.errors import Forbidden, Invalid
from tenants.opaque_tokens import is_ours
from tenants.passwords import Party
from tenants.security_events import SecurityEvent
from tenants.sessions import BadLogin, Cookie, Tokens

Started = TypeVar("Started", Tokens, Cookie)

# Look-ups of reset tokens that we may not have made.
UNSIGNED_RESETS = throttle.per_minute(10)

blueprint = Blueprint("auth", __name__, url_prefix="/api/v1/auth", description="Logins of end users")


NEW_PASSWORD = {
    "minLength": passwords.MIN_CHARS,
    "maxLength": passwords.MAX_CHARS,
    "format": "password",
    "description": "not easily guessed: no common password, and not a name of the user or the tenant",
}


class SignupClosed(Forbidden):
    code = "signup_closed"
    title = "This tenant does not accept registrations"


class RegisterIn(Schema):
    tenant = ma.fields.String(required=True, metadata=matching(TENANT_ID))
    username = ma.fields.String(required=True, metadata=matching(users.USERNAME))
    email = ma.fields.String(required=True, metadata={"format": "email", "maxLength": users.MAX_EMAIL_CHARS})
    password = ma.fields.String(required=True, metadata=NEW_PASSWORD)


class LoginIn(Schema):
    tenant = ma.fields.String(required=True)
    username = ma.fields.String(required=True)
    password = ma.fields.String(required=True)


class PasswordIn(Schema):
    old = ma.fields.String(required=True)
    new = ma.fields.String(required=True, metadata=NEW_PASSWORD)


class RefreshIn(Schema):
    refresh_token = ma.fields.String(required=True)


class ResetIn(Schema):
    reset_token = ma.fields.String(required=True)
    password = ma.fields.String(required=True, metadata=NEW_PASSWORD)


class TokensOut(Schema):
    access_token = ma.fields.String(required=True)
    refresh_token = ma.fields.String(required=True)
    token_type = ma.fields.String(required=True, metadata={"enum": ["Bearer"]})
    expires_in = ma.fields.Integer(required=True, metadata={"description": "seconds"})
    user = ma.fields.Nested(UserOut, metadata={"description": "after a login", **SOMETIMES})
    must_change_password = ma.fields.Boolean(
        metadata={"description": "after a login: whether the user may do nothing before changing it", **SOMETIMES}
    )


class SessionOut(Schema):
    id = ma.fields.UUID(required=True)
    ip = ma.fields.String(allow_none=True)
    user_agent = ma.fields.String(allow_none=True)
    created_at = ma.fields.AwareDateTime()
    last_used_at = ma.fields.AwareDateTime()
    expires_at = ma.fields.AwareDateTime()
    current = ma.fields.Boolean()


class SessionsOut(Schema):
    items = ma.fields.List(ma.fields.Nested(SessionOut))
    next_cursor = ma.fields.String(allow_none=True)


@blueprint.post("/register")
@public
@blueprint.arguments(RegisterIn)
@blueprint.response(201, UserOut)
def register(body: dict[str, str]) -> Any:
    """Create a user with a password. The setting `signup_sees` decides whether they see private pages."""
    require_few_of_network("register")
    tenant_id, username, email = _known_tenant(body["tenant"]), body["username"], body["email"]
    passwords.check_length(body["password"])
    with tenant_tx(tenant_id) as tx:
        registry.get(tx, tenant_id)
        if not tenant_settings.read(tx)[0].signup_open:
            raise SignupClosed
        about = users.words_about(tx, username=username, email=email)
    hashed = passwords.hash_new(body["password"], about, party=Party(tenant_id))  # slow: outside of any transaction
    with tenant_tx(tenant_id) as tx:
        user = users.register(
            tx, username=username, email=email, password_hash=hashed, sees_private=False, now=utcnow()
        )
    logs.bind(tenant_id=tenant_id, user_id=str(user.id))
    logs.audit(SecurityEvent.USER_REGISTERED)
    return user


@blueprint.post("/login")
@public
@blueprint.arguments(LoginIn)
@blueprint.response(200, TokensOut)
def login(body: dict[str, str]) -> Any:
    """Tokens for a username and password."""
    user, tokens = sign_in(body, sessions.start)
    return {**_tokens(tokens), "user": user, "must_change_password": user.must_change_password}


def sign_in(body: dict[str, str], start: Callable[..., Started]) -> tuple[users.User, Started]:
    """Check the password and start a session; `start` decides of which kind.

    Who is suspended is told so, but only with the right password.
    """
    tenant_id = body["tenant"]
    if TENANT_ID.fullmatch(tenant_id):
        logs.bind(tenant_id=tenant_id)  # for what is said of a refusal
    attempt = password_attempts.at_login(tenant_id, body["username"])
    is_right, user = attempt.is_right(body["password"]), attempt.user
    if user is None or not is_right:
        # A name that nobody has may be a password in the wrong field.
        logs.audit(SecurityEvent.LOGIN_FAILED, account=user.username if user is not None else None)
        raise BadLogin
    suspensions.require_active(user, now=utcnow())
    new_hash = users.rehash_if_outdated(user, body["password"][: passwords.MAX_CHARS], party=attempt.party)
    services().signer.load()
    with tenant_tx(tenant_id) as tx:
        # Checking the password took a while: respect a reset or a suspension in the meantime.
        current, now = users.lock_unchanged(tx, user), utcnow()
        if current is None:
            raise BadLogin
        suspensions.require_active(current, now=now)
        if new_hash is not None:
            users.set_new_hash(tx, user.id, new_hash, now=now)
        agent = password_attempts.agent()
        started = start(tx, user, signer=services().signer, ip=caller_address(), agent=agent, now=now)
    logs.bind(tenant_id=tenant_id, user_id=str(user.id))
    logs.audit(SecurityEvent.SESSION_STARTED, session=str(started.session_id))
    return user, started


@blueprint.post("/password")
@requires(May.CHANGE_OWN_PASSWORD)
@blueprint.arguments(PasswordIn)
@blueprint.response(204)
def change_password(body: dict[str, str]) -> None:
    """Set a new password, with the old one. All other sessions of the user end at once; this one stays."""
    actor = current_actor()
    passwords.check_length(body["new"], field="new")
    attempt = password_attempts.by_session(actor.tenant_id, actor.user_id)
    user = attempt.require_right(body["old"])
    if body["new"] == body["old"]:
        raise Invalid.field("new", "another one than the old one")
    with actor_tx() as tx:
        about = users.words_about(tx, username=user.username, email=user.email)
    hashed = passwords.hash_new(body["new"], about, party=attempt.party, field="new")  # slow: outside of transactions
    with actor_tx() as tx:
        if users.lock_unchanged(tx, user) is None:
            raise WrongPassword
        ended = sessions.change_password(tx, user.id, hashed, keep=actor.session_id, now=utcnow())
    logs.audit(SecurityEvent.PASSWORD_CHANGED, user=str(user.id), sessions_ended=ended)


@blueprint.post("/refresh")
@public
@blueprint.arguments(RefreshIn)
@blueprint.response(200, TokensOut)
def refresh(body: dict[str, str]) -> Any:
    """New tokens. A refresh token is valid once: using it again ends the session."""
    require_few_of_network("refresh")
    return _tokens(sessions.refresh(body["refresh_token"], signer=services().signer, now=utcnow()))


@blueprint.post("/logout")
@requires(May.LOG_OUT)
@blueprint.response(204)
def logout() -> None:
    """End this session."""
    end_own_session()


def end_own_session() -> None:
    actor = current_actor()
    assert actor.session_id is not None  # noqa: S101
    with actor_tx() as tx:
        sessions.revoke(tx, actor.session_id, now=utcnow())
    logs.audit(SecurityEvent.SESSION_ENDED, session=str(actor.session_id))


@blueprint.get("/sessions")
@requires(May.MANAGE_OWN_SESSIONS)
@blueprint.response(200, SessionsOut)
def list_sessions() -> Any:
    """One's own sessions, newest first. A user has at most twenty: another login ends the oldest."""
    actor = current_actor()
    with actor_tx() as tx:
        return listed_sessions(tx, users.get(tx, actor.user_id))


def listed_sessions(tx: Tx, user: users.User) -> dict[str, Any]:
    current = current_actor().session_id
    rows = session_use.list_for(tx, user, now=utcnow())
    return {"items": [asdict(row) | {"current": row.id == current} for row in rows], "next_cursor": None}


@blueprint.delete("/sessions/<uuid:session_id>")
@requires(May.MANAGE_OWN_SESSIONS)
@idempotent
@blueprint.response(204)
def end_session(session_id: UUID) -> None:
    """End one of one's own sessions."""
    actor = current_actor()
    with actor_tx() as tx:
        sessions.get_own(tx, session_id, actor.user_id)
        sessions.revoke(tx, session_id, now=utcnow(), user_id=actor.user_id)
    audit(SecurityEvent.SESSION_ENDED, session=str(session_id))


@blueprint.post("/reset")
@public
@blueprint.arguments(ResetIn)
@blueprint.response(204)
def reset(body: dict[str, str]) -> ResponseReturnValue:
    """Set a new password with a reset token; every session of the user ends."""
    require_few_of_network("reset")
    tenant_id = resets.tenant_of(body["reset_token"])
    if not is_ours(body["reset_token"], services().signer):
        # An earlier release issued the token, or somebody made it up: few such tokens are looked up.
        throttle.require("reset-unsigned", UNSIGNED_RESETS, caller_network(), detail="Too many unknown reset tokens")
    passwords.check_length(body["password"])
    with tenant_tx(tenant_id) as tx:  # hashing is slow: only for a valid token
        user = users.get(tx, resets.user_of(tx, body["reset_token"], now=utcnow()))
        about = users.words_about(tx, username=user.username, email=user.email)
    party = Party(tenant_id, is_known=True)
    hashed = passwords.hash_new(body["password"], about, party=party)  # outside of any transaction
    with tenant_tx(tenant_id) as tx:
        user_id, ended = sessions.reset_password(tx, body["reset_token"], hashed, now=utcnow())
    logs.bind(tenant_id=tenant_id, user_id=str(user_id))
    logs.audit(SecurityEvent.PASSWORD_RESET, user=str(user_id), sessions_ended=ended)
    return ""


def _known_tenant(tenant_id: str) -> str:
    if TENANT_ID.fullmatch(tenant_id) is None:
        raise registry.TenantNotFound
    return tenant_id


def _tokens(tokens: Tokens) -> dict[str, Any]:
    return {
        "access_token": tokens.access_token,
        "refresh_token": tokens.refresh_token,
        "token_type": "Bearer",
        "expires_in": tokens.expires_in,
    }
