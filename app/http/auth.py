"""Authentication: who calls.

A caller is an OAuth client (scopes), a user (role; by token, or by the dashboard's cookie), a static token, or a
browser with a publishable key (origin). A static token of the tenant has scopes, as a client; one of a user has their
role, as far as its scopes go. What each may do is in `app.http.rights`.
"""

import math
import re
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from ipaddress import ip_address, ip_network
from typing import Any, Literal
from uuid import UUID

from flask import g, request

from app.http.services import essentials
from tenants import credentials, liveness, logs, sessions, static_tokens, token_uses
from tenants.credentials import ClientToken, Scope, ValidKey
from tenants.db import TENANT_ID
from tenants.errors import Forbidden, Unauthenticated
from tenants.shares import Caller, current_caller
from tenants.signing import BadToken, Signer
from tenants.static_tokens import STATIC
from tenants.users import Role

# In the WSGI environment, if the fast lane has already written the request: its `WriteRequest`.
WRITTEN = "plaudit.written"
# The longest IPv6 address with a zone and a port is shorter.
MAX_ADDRESS_CHARS = 100
# Whoever was authenticated longer ago is authenticated again before anything is done for them: a long body or the
# tenant's share was waited for, and meanwhile they may have been revoked.
AUTHENTIC_FOR_S = 0.1
# The dashboard's own scripts send it.
OWN_HEADER = "X-Plaudit-Dashboard"


@dataclass(frozen=True)
class Actor:
    """Who calls."""

    kind: Literal["client", "user"]
    tenant_id: str
    id: str
    # Of a user only with a static token, which limits what their role allows.
    scopes: frozenset[str] = frozenset()
    role: Role | None = None
    # Whether they see public pages only: a self-registered member.
    public_only: bool = False
    # Whether they may do nothing else: somebody has seen their password.
    must_change_password: bool = False
    session_id: UUID | None = None
    # The id of a client's or a static token, and when it expires (seconds since the epoch).
    token_id: str = ""
    token_expires_at: int | None = None
    # Until when all of this is so, unless something is revoked or changed (seconds since the epoch).
    expires_at: float = field(default=0.0, compare=False)

    @cached_property
    def reader(self) -> "Reader":
        return Reader(self.tenant_id, public_only=self.public_only, is_anonymous=False)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of `liveness` whose changes may make this another actor, or none."""
        if self.kind == "client":
            return (*credentials.token_names(self.id, self.token_id), liveness.TENANT)
        if self.static_token_id:
            return (*static_tokens.names_of(self.static_token_id, self.user_id), liveness.SETTINGS, liveness.TENANT)
        return (*sessions.names_of(str(self.session_id), self.user_id), liveness.SETTINGS, liveness.TENANT)

    @cached_property
    def caller(self) -> str:
        return f"{self.kind}:{self.id}"

    @property
    def rights(self) -> str:
        """The rights in one text, to be compared with those of another time."""
        if self.kind == "client":
            return " ".join(sorted(self.scopes))
        role = f"{self.role} public_only" if self.public_only else str(self.role)
        return " ".join((role, *sorted(self.scopes)))

    @property
    def user_id(self) -> UUID:
        """The user who calls; a client has none."""
        if self.kind != "user":
            raise Forbidden("This is for users, with a token from /api/v1/auth/login")
        return UUID(self.id)

    @property
    def client_token(self) -> ClientToken | None:
        """A client's token, to be checked again in the transaction that it authorizes."""
        return ClientToken(self.id, self.token_id) if self.kind == "client" else None

    @property
    def static_token_id(self) -> str:
        """The id of the static token that was sent; empty if the caller has authenticated in another way."""
        return self.token_id.removeprefix(STATIC) if self.token_id.startswith(STATIC) else ""

    @property
    def is_admin(self) -> bool:
        if self.kind == "user":
            return self.role is Role.ADMIN and (not self.static_token_id or Scope.ADMIN in self.scopes)
        return Scope.ADMIN in self.scopes


class NoCredentials(Unauthenticated):
    """RFC 6750: without any credentials, no error code."""

    headers = {"WWW-Authenticate": 'Bearer realm="plaudit"'}  # noqa: RUF012


class BadCredentials(BadToken):
    headers = {  # noqa: RUF012
        "WWW-Authenticate": 'Bearer realm="plaudit", error="invalid_token", error_description="not valid, or no longer"'
    }


class CrossSite(Forbidden):
    code = "cross_site"
    title = "With the dashboard's cookie, only the dashboard may change anything"


class OriginNotAllowed(Forbidden):
    code = "origin_not_allowed"
    title = "The publishable key is not valid for this origin"


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
        """Not anonymous or self-registered readers: a tenant's own id for a user may be an e-mail address."""
        return not self.public_only

    @cached_property
    def audience(self) -> tuple[bool, bool]:
        """Readers with the same audience may get the same cached answer."""
        return self.public_only, self.is_anonymous


def current_reader() -> Reader:
    actor: Actor | None = g.get("actor")
    if actor is not None:
        return actor.reader
    return Reader.anonymous(current_key().tenant_id)


def current_key() -> ValidKey:
    key: ValidKey = g.publishable_key
    return key


def current_actor() -> Actor:
    actor: Actor = g.actor
    return actor


def caller_address() -> str | None:
    """The address of the current request's caller."""
    return address_of(request.environ, proxy_hops=essentials().settings.proxy_hops)


def address_of(environ: dict[str, Any], *, proxy_hops: int) -> str | None:
    """The caller's address, behind `proxy_hops` trusted proxies; None when the forwarded address cannot be parsed.

    Never the proxy's own address: a caller who sends a malformed header must not be taken for the proxy.
    """
    forwarded = environ.get("HTTP_X_FORWARDED_FOR")
    if proxy_hops and forwarded is not None:
        hops = [part.strip() for part in forwarded.split(",")]
        return _parse_address(hops[-proxy_hops]) if len(hops) >= proxy_hops else None
    return _parse_address(environ.get("REMOTE_ADDR", ""))


def caller_network() -> str:
    """The key of rate limits: an IPv4 address, or the /64 of an IPv6 address, since one household owns all of it."""
    return network_of(request.environ, proxy_hops=essentials().settings.proxy_hops)


def network_of(environ: dict[str, Any], *, proxy_hops: int) -> str:
    """`caller_network` of a request outside of Flask; empty if the forwarded address cannot be parsed."""
    address = address_of(environ, proxy_hops=proxy_hops)
    if address is None or ":" not in address:
        return address or ""
    return str(ip_network(f"{address}/64", strict=False))


def _parse_address(text: str) -> str | None:
    """An address without the port or zone that some proxies add; an IPv4-mapped IPv6 address as IPv4."""
    return _parse_short_address(text) if len(text) <= MAX_ADDRESS_CHARS else None


@lru_cache(maxsize=10_000)
def _parse_short_address(text: str) -> str | None:
    match = re.fullmatch(r"\[([^\]]+)\](?::\d+)?|([^:]+)(?::\d+)?|(.+)", text)
    bare = next((part for part in match.groups() if part), "") if match else ""
    try:
        address = ip_address(bare.split("%", 1)[0])
    except ValueError:
        return None
    return str(getattr(address, "ipv4_mapped", None) or address)


def authenticate() -> Actor:
    """The caller, from their token or cookie. A revocation is effective on the next call (`tenants.liveness`)."""
    authorization = request.environ.get("HTTP_AUTHORIZATION", "")
    cookie = request.cookies.get(cookie_name()) if not authorization and "HTTP_COOKIE" in request.environ else None
    if cookie is not None:
        actor = _actor_from_cookie(cookie)
    else:
        actor = authenticate_bearer(authorization, essentials().signer)
    g.actor = actor
    current_caller.set(Caller(actor.tenant_id, actor.caller))
    logs.bind(tenant_id=actor.tenant_id, user_id=actor.id)
    return actor


def authenticate_bearer(authorization: str, signer: Signer) -> Actor:
    claims = verified_claims(authorization, signer)
    try:
        actor = _actor_from_claims(claims)
        return replace(actor, expires_at=min(actor.expires_at, claims["exp"]))
    except BadToken:
        raise BadCredentials from None


def verified_claims(authorization: str, signer: Signer) -> dict[str, Any]:
    """What the token in this header claims. Whether it was revoked is not checked."""
    scheme, _, token = authorization.partition(" ")
    if not token:
        raise NoCredentials("Send an access token: Authorization: Bearer …")
    if scheme.lower() != "bearer":
        raise NoCredentials("Only bearer tokens are accepted")
    token = token.strip()
    if token.startswith(static_tokens.PREFIX):
        shown = static_tokens.parse(token, signer)
        if shown is None:
            raise BadCredentials
        ends = {"exp": math.inf}  # its own end is checked with its validity
        return {"kind": "static", "tenant": shown.tenant_id, "sub": shown.token_id, "hash": shown.hash, **ends}
    try:
        return signer.verify(token)
    except BadToken:
        raise BadCredentials from None


def cookie_name() -> str:
    """Browsers accept a `__Host-` cookie only over https, for this host and the path `/`."""
    settings = essentials().settings
    return "__Host-plaudit_session" if settings.public_url.startswith("https://") else "plaudit_session"


def require_same_origin() -> None:
    """For changes by cookie: only our own scripts can send this header, since no CORS preflight allows it."""
    site = request.headers.get("Sec-Fetch-Site", "same-origin")
    if OWN_HEADER not in request.headers or site != "same-origin":
        raise CrossSite(f"Send {OWN_HEADER}: 1, from a page of this service")


def _actor_from_cookie(cookie: str) -> Actor:
    if request.method not in {"GET", "HEAD"}:
        require_same_origin()
    found = sessions.parse_cookie(cookie, essentials().signer)
    names = (found.tenant_id, str(found.user_id), str(found.session_id)) if found else None
    actor = _actor_from_session(*names, touches=True) if names else None
    if actor is None:
        raise BadCredentials("The session has ended: sign in again")
    return actor


def _actor_from_session(tenant_id: str, user_id: str, session_id: str, *, touches: bool = False) -> Actor | None:
    rights = sessions.rights_of(tenant_id, session_id, touches=touches)
    if rights is None:
        return None
    session = UUID(session_id)
    return Actor(
        "user",
        tenant_id,
        user_id,
        role=rights.role,
        public_only=rights.public_only,
        must_change_password=rights.must_change_password,
        session_id=session,
        expires_at=rights.expires_at,
    )


def _actor_from_claims(claims: dict[str, Any]) -> Actor:
    tenant_id, subject = str(claims["tenant"]), str(claims["sub"])
    if TENANT_ID.fullmatch(tenant_id) is None:
        raise BadToken
    if claims.get("kind") == "user":
        actor = _actor_from_session(tenant_id, subject, str(claims.get("sid")))
        if actor is None:
            raise BadToken
        return actor
    if claims.get("kind") == "static":
        return _actor_from_static_token(tenant_id, subject, claims["hash"])
    if claims.get("kind") == "client":
        jti, scopes = str(claims.get("jti")), frozenset(str(claims.get("scope", "")).split())
        if not credentials.client_token_is_valid(tenant_id, subject, jti):
            raise BadToken
        exp = int(claims["exp"])
        return Actor("client", tenant_id, subject, scopes, token_id=jti, token_expires_at=exp, expires_at=exp)
    raise BadToken


def _actor_from_static_token(tenant_id: str, token_id: str, hashed: str) -> Actor:
    rights = static_tokens.rights_of(tenant_id, token_id, hashed=hashed)
    if rights is None:
        raise BadToken
    token_uses.note(tenant_id, token_id)
    shown_id = f"{STATIC}{token_id}"
    return Actor(
        "client" if rights.user_id is None else "user",
        tenant_id,
        shown_id if rights.user_id is None else str(rights.user_id),
        rights.scopes,
        role=rights.role,
        public_only=rights.public_only,
        token_id=shown_id,
        token_expires_at=int(rights.expires_at) if rights.expires_at is not None else None,
        expires_at=rights.expires_at if rights.expires_at is not None else math.inf,
    )
