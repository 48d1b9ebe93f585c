"""End users: register, log in, refresh, log out, their sessions, and forgotten passwords."""

from collections.abc import Callable
from typing import Any, TypeVar
from uuid import UUID

import marshmallow as ma
from flask import request
from flask.typing import ResponseReturnValue

from app.api.blueprint import SOMETIMES, Blueprint, Schema, matching
from app.api.users import UserOut
from app.http.auth import caller_address, caller_network, current_actor
from app.http.rights import May, public, requires
from app.http.services import services
from app.http.transactions import actor_tx, audit, idempotent
from tenants import logs, passwords, registry, resets, sessions, suspensions, throttle, users
from tenants import settings as tenant_settings
from tenants.db import TENANT_ID, tenant_tx, utcnow
from tenants.errors import Forbidden, NotFound
from tenants.security_events import SecurityEvent
from tenants.sessions import BadLogin, Cookie, Tokens

Started = TypeVar("Started", Tokens, Cookie)

PER_ACCOUNT_AND_NETWORK = throttle.per_minute(10)
PER_ACCOUNT = throttle.per_minute(60)
PER_ADDRESS = throttle.per_minute(100)

blueprint = Blueprint("auth", __name__, url_prefix="/api/v1/auth", description="Logins of end users")


NEW_PASSWORD = {"minLength": passwords.MIN_CHARS, "maxLength": passwords.MAX_CHARS, "format": "password"}


class SignupClosed(Forbidden):
    code = "signup_closed"
    title = "This tenant does not accept registrations"


class WrongPassword(Forbidden):
    code = "wrong_password"
    title = "The old password is not right"


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
    new = ma.fields.String(required=True, metadata={"description": "at least 10 characters"})


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
    _throttle_address("register")
    passwords.check_length(body["password"])
    with tenant_tx(_known_tenant(body["tenant"])) as tx:
        registry.get(tx, body["tenant"])
        if not tenant_settings.read(tx)[0].signup_open:
            raise SignupClosed
    hashed = passwords.hash_password(body["password"])  # slow: outside of any transaction
    with tenant_tx(body["tenant"]) as tx:
        user = users.register(
            tx,
            username=body["username"],
            email=body["email"],
            password_hash=hashed,
            sees_private=False,
            now=utcnow(),
        )
    logs.bind(tenant_id=body["tenant"], user_id=str(user.id))
    logs.audit(SecurityEvent.USER_REGISTERED)
    return user


@blueprint.post("/login")
@public
@blueprint.arguments(LoginIn)
@blueprint.response(200, TokensOut)
def login(body: dict[str, str]) -> Any:
    """Tokens for a username and password."""
    user, tokens = sign_in(body, sessions.start)
    return {**_tokens(tokens), "user": user}


def sign_in(body: dict[str, str], start: Callable[..., Started]) -> tuple[users.User, Started]:
    """Check the password and start a session; `start` decides of which kind.

    Who is suspended is told so, but only with the right password.
    """
    tenant_id, username = body["tenant"], body["username"]
    _throttle_passwords(tenant_id, username)
    user = _find_user(tenant_id, username)
    is_right = passwords.verify_password(user.password_hash if user else None, body["password"][: passwords.MAX_CHARS])
    if user is None or not is_right:
        raise BadLogin
    suspensions.require_active(user, now=utcnow())
    new_hash = users.rehash_if_outdated(user, body["password"])
    services().signer.load()
    with tenant_tx(tenant_id) as tx:
        # Checking the password took a while: respect a reset or a suspension in the meantime.
        current, now = users.lock_unchanged(tx, user), utcnow()
        if current is None:
            raise BadLogin
        suspensions.require_active(current, now=now)
        if new_hash is not None:
            users.set_password(tx, user.id, new_hash, now=now)
        started = start(tx, user, signer=services().signer, ip=caller_address(), agent=_agent(), now=now)
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
    with actor_tx() as tx:
        user = users.get(tx, actor.user_id)
    _throttle_passwords(actor.tenant_id, user.username or actor.id)
    if not passwords.verify_password(user.password_hash, body["old"][: passwords.MAX_CHARS]):
        raise WrongPassword
    hashed = passwords.hash_password(body["new"])  # slow: outside of any transaction
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
    _throttle_address("refresh")
    return _tokens(sessions.refresh(body["refresh_token"], signer=services().signer, now=utcnow()))


@blueprint.post("/logout")
@requires(May.MANAGE_OWN_SESSIONS)
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
    """The latest hundred of one's own sessions, newest first."""
    actor = current_actor()
    with actor_tx() as tx:
        rows = sessions.list_for(tx, actor.user_id, now=utcnow())
    return {
        "items": [
            {**{name: getattr(row, name) for name in SessionOut().fields if name != "current"}}
            | {"ip": str(row.ip) if row.ip else None, "current": row.id == actor.session_id}
            for row in rows
        ],
        "next_cursor": None,
    }


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
    _throttle_address("reset")
    tenant_id = resets.tenant_of(body["reset_token"])
    passwords.check_length(body["password"])
    with tenant_tx(tenant_id) as tx:  # hashing is slow: only for a valid token
        resets.user_of(tx, body["reset_token"], now=utcnow())
    hashed = passwords.hash_password(body["password"])  # outside of any transaction
    with tenant_tx(tenant_id) as tx:
        user_id, ended = sessions.reset_password(tx, body["reset_token"], hashed, now=utcnow())
    logs.bind(tenant_id=tenant_id, user_id=str(user_id))
    logs.audit(SecurityEvent.PASSWORD_RESET, user=str(user_id), sessions_ended=ended)
    return ""


def _find_user(tenant_id: str, username: str) -> users.User | None:
    """The user who wants to log in; None for an unknown tenant or user. The answer, and the work, must not differ."""
    if TENANT_ID.fullmatch(tenant_id) is None:
        return None
    with tenant_tx(tenant_id) as tx:
        try:
            registry.get(tx, tenant_id)
        except NotFound:
            return None
        return users.by_username(tx, username)


def _throttle_passwords(tenant_id: str, username: str) -> None:
    """Few attempts at an account's password from one network, more from all together.

    But others can never lock a user's known device out.
    """
    _throttle_address("login-address")
    account = (tenant_id[:64], username[:64].lower())
    throttle.require(
        "login", PER_ACCOUNT_AND_NETWORK, *account, caller_network(), detail="Too many logins: try again later"
    )
    all_networks = throttle.hit("login-account", PER_ACCOUNT, *account)
    if not all_networks.is_allowed and not _is_known_device(tenant_id, username):
        raise throttle.TooMany("Too many logins for this account", state=all_networks)


def _is_known_device(tenant_id: str, username: str) -> bool:
    """Whether this user had a session from this network and browser. For an unknown user it does the same work."""
    if TENANT_ID.fullmatch(tenant_id) is None:
        return False
    with tenant_tx(tenant_id) as tx:
        return sessions.is_known_device(tx, username, network=caller_network(), agent=_agent(), now=utcnow())


def _agent() -> str | None:
    return request.headers.get("User-Agent")


def _known_tenant(tenant_id: str) -> str:
    if TENANT_ID.fullmatch(tenant_id) is None:
        raise registry.TenantNotFound
    return tenant_id


def _throttle_address(what: str) -> None:
    throttle.require(what, PER_ADDRESS, caller_network(), detail="Too many attempts from this address")


def _tokens(tokens: Tokens) -> dict[str, Any]:
    return {
        "access_token": tokens.access_token,
        "refresh_token": tokens.refresh_token,
        "token_type": "Bearer",
        "expires_in": tokens.expires_in,
    }
