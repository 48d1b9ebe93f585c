"""Who calls.

A caller is an OAuth client (scopes), a user (role; by token, or by the dashboard's cookie), or a browser with a
publishable key (origin). What each may do is in `app.http.rights`.
"""

import re
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from typing import Any, Literal
from uuid import UUID

from flask import g, request

from app.http.services import essentials
from tenants import credentials, logs, sessions
from tenants.credentials import ClientToken, Scope, ValidKey
from tenants.db import TENANT_ID
from tenants.errors import Forbidden, Unauthenticated
from tenants.signing import BadToken, Signer
from tenants.users import Role

# In the environment of a request that the fast lane has written already: its outcomes, or its error.
WRITTEN = "plaudit.written"
# Sent by the dashboard's own scripts.
OWN_HEADER = "X-Plaudit-Dashboard"


@dataclass(frozen=True)
class Actor:
    """Who calls."""

    kind: Literal["client", "user"]
    tenant_id: str
    id: str
    scopes: frozenset[str] = frozenset()
    role: Role | None = None
    # Whether they see public pages only: a member who registered alone.
    public_only: bool = False
    session_id: UUID | None = None
    # The id of a client's token, and when it runs out.
    token_id: str = ""
    token_until: int | None = None

    @property
    def caller(self) -> str:
        return f"{self.kind}:{self.id}"

    @property
    def user_id(self) -> UUID:
        """The user who calls; a client has none."""
        if self.kind != "user":
            raise Forbidden("This is for users, with a token from /api/v1/auth/login")
        return UUID(self.id)

    @property
    def client_token(self) -> ClientToken | None:
        """A client's token, to be checked once more in the transaction of what it is used for."""
        return ClientToken(self.id, self.token_id) if self.kind == "client" else None

    @property
    def is_admin(self) -> bool:
        return self.role is Role.ADMIN or Scope.ADMIN in self.scopes


class NoCredentials(Unauthenticated):
    """RFC 6750: without any credentials, no error code."""

    headers = {"WWW-Authenticate": 'Bearer realm="plaudit"'}  # noqa: RUF012


class BadCredentials(BadToken):
    headers = {  # noqa: RUF012
        "WWW-Authenticate": 'Bearer realm="plaudit", error="invalid_token", error_description="not valid, or no longer"'
    }


class CrossSite(Forbidden):
    code = "cross_site"
    title = "With the dashboard's cookie, changes are made by the dashboard only"


class OriginNotAllowed(Forbidden):
    code = "origin_not_allowed"
    title = "The publishable key does not count from this origin"


@dataclass(frozen=True)
class Reader:
    """Who reads: a client, a user, or an anonymous browser with a publishable key.

    `public_only` readers see public pages, and the boards of those, only. `is_anonymous` readers are also limited by
    their address, see users only where the tenant's scoreboard is public, and never the tenant's own ids of users.
    """

    tenant_id: str
    public_only: bool
    is_anonymous: bool

    @classmethod
    def anonymous(cls, tenant_id: str) -> "Reader":
        return cls(tenant_id, public_only=True, is_anonymous=True)

    @property
    def sees_external_ids(self) -> bool:
        """A tenant's own id for a user may be an e-mail address: not for who is anonymous, or registered alone."""
        return not self.public_only

    @property
    def audience(self) -> tuple[bool, bool]:
        """Readers of the same audience may be given the same answer."""
        return self.public_only, self.is_anonymous


def current_reader() -> Reader:
    actor: Actor | None = g.get("actor")
    if actor is not None:
        return Reader(actor.tenant_id, public_only=actor.public_only, is_anonymous=False)
    return Reader.anonymous(current_key().tenant_id)


def current_key() -> ValidKey:
    key: ValidKey = g.publishable_key
    return key


def current_actor() -> Actor:
    actor: Actor = g.actor
    return actor


def caller_address() -> str | None:
    """Where the call came from, by as many proxies as are ours; None when they did not say it in a form we know.

    Never the proxy itself: whoever can garble the header must not pass for it.
    """
    settings = essentials().settings
    forwarded = request.environ.get("HTTP_X_FORWARDED_FOR")
    if settings.proxy_hops and forwarded is not None:
        said = [part.strip() for part in forwarded.split(",")]
        return _address(said[-settings.proxy_hops]) if len(said) >= settings.proxy_hops else None
    return _address(request.environ.get("REMOTE_ADDR", ""))


def caller_network() -> str:
    """What limits are counted by: an IPv4 address, or the /64 of an IPv6 one, since one household has all of it."""
    address = caller_address()
    if address is None or ":" not in address:
        return address or ""
    return str(ip_network(f"{address}/64", strict=False))


def _address(text: str) -> str | None:
    """An address without the port or zone that some proxies add; IPv4 also where a dual-stack socket wraps it."""
    match = re.fullmatch(r"\[([^\]]+)\](?::\d+)?|([^:]+)(?::\d+)?|(.+)", text)
    bare = next((part for part in match.groups() if part), "") if match else ""
    try:
        address = ip_address(bare.split("%", 1)[0])
    except ValueError:
        return None
    return str(getattr(address, "ipv4_mapped", None) or address)


def authenticate(*, check_token: bool = True) -> Actor:
    """The caller, by the token or cookie they show. Looks up every time whether it still counts."""
    authorization = request.environ.get("HTTP_AUTHORIZATION", "")
    cookie = request.cookies.get(cookie_name()) if not authorization and "HTTP_COOKIE" in request.environ else None
    if cookie is not None:
        actor = _actor_of_cookie(cookie)
    else:
        actor = actor_showing(authorization, essentials().signer, check_token=check_token)
    g.actor = actor
    logs.bind(tenant_id=actor.tenant_id, user_id=actor.id)
    return actor


def actor_showing(authorization: str, signer: Signer, *, check_token: bool) -> Actor:
    scheme, _, token = authorization.partition(" ")
    if not token:
        raise NoCredentials("Send an access token: Authorization: Bearer …")
    if scheme.lower() != "bearer":
        raise NoCredentials("Only bearer tokens are taken here")
    try:
        return _actor_of(signer.verify(token.strip()), check_token=check_token)
    except BadToken:
        raise BadCredentials from None


def cookie_name() -> str:
    """Browsers hold a cookie of the first name to https, our host and its root."""
    settings = essentials().settings
    return "__Host-plaudit_session" if settings.public_url.startswith("https://") else "plaudit_session"


def require_same_origin() -> None:
    """For changes by cookie: only a script of ours can send this header, since no preflight allows it to others."""
    site = request.headers.get("Sec-Fetch-Site", "same-origin")
    if OWN_HEADER not in request.headers or site != "same-origin":
        raise CrossSite(f"Send {OWN_HEADER}: 1, from a page of this service")


def _actor_of_cookie(cookie: str) -> Actor:
    if request.method not in {"GET", "HEAD"}:
        require_same_origin()
    known = sessions.parse_cookie(cookie, essentials().signer)
    actor = _user_of(known.tenant_id, str(known.user_id), str(known.session_id)) if known is not None else None
    if actor is None:
        raise BadCredentials("The session has ended: sign in again")
    return actor


def _user_of(tenant_id: str, user_id: str, session_id: str) -> Actor | None:
    rights = sessions.rights_of(tenant_id, session_id)
    if rights is None:
        return None
    session = UUID(session_id)
    return Actor("user", tenant_id, user_id, role=rights.role, public_only=rights.public_only, session_id=session)


def _actor_of(claims: dict[str, Any], *, check_token: bool) -> Actor:
    tenant_id, subject = str(claims["tenant"]), str(claims["sub"])
    if TENANT_ID.fullmatch(tenant_id) is None:
        raise BadToken
    if claims.get("kind") == "user":
        actor = _user_of(tenant_id, subject, str(claims.get("sid")))
        if actor is None:
            raise BadToken
        return actor
    if claims.get("kind") == "client":
        jti, scopes = str(claims.get("jti")), frozenset(str(claims.get("scope", "")).split())
        if check_token and not credentials.client_token_is_valid(tenant_id, subject, jti):
            raise BadToken
        return Actor("client", tenant_id, subject, scopes, token_id=jti, token_until=int(claims["exp"]))
    raise BadToken
