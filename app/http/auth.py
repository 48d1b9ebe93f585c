"""Who may do what. Every route declares it, `tests/rules` fails for one that does not, and the table is here.

A caller is an OAuth client (scopes), a user (role; by token, or by the dashboard's cookie), or a browser with a
publishable key (origin). `@requires` finds out who calls, checks the table, and leaves the `Actor` for the route. What
belongs to another tenant is never looked at here: inside `tenant_tx` it does not exist.
"""

import hmac
import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import wraps
from ipaddress import ip_address, ip_network
from typing import Any, Literal, TypeVar
from uuid import UUID

from flask import g, request

from app.http import body
from app.http.services import essentials, services
from tenants import credentials, logs, sessions
from tenants.credentials import ClientToken, KeyInUse, Scope
from tenants.db import TENANT_ID
from tenants.errors import Forbidden, TooLarge, Unauthenticated
from tenants.signing import BadToken, Signer
from tenants.users import Role

# In the environment of a request that the fast lane has written already: its outcomes, or its error.
WRITTEN = "plaudit.written"
# Sent by the dashboard's own scripts.
OWN_HEADER = "X-Plaudit-Dashboard"

View = TypeVar("View", bound=Callable[..., Any])


class Access(Enum):
    """The routes that ask for no tenant's credentials."""

    PUBLIC = "anyone"
    KEY = "a publishable key, from one of its origins"
    OPERATOR = "loopback, or the metrics token"


class May(Enum):
    """What a route may ask of its caller: the client scopes and user roles that allow it, and whether a key does."""

    SEE_ONESELF = ("see who one is", set(Scope), {Role.MEMBER, Role.ADMIN})
    KEEP_OWN_SESSIONS = ("list and end one's own sessions", set[Scope](), {Role.MEMBER, Role.ADMIN})
    MANAGE_CREDENTIALS = ("make and revoke clients and keys", {Scope.ADMIN}, {Role.ADMIN})
    MANAGE_SETTINGS = ("read and change the tenant's settings", {Scope.ADMIN}, {Role.ADMIN})
    MANAGE_USERS = ("list users, set roles, suspend", {Scope.ADMIN}, {Role.ADMIN})
    RESET_PASSWORDS = ("get a reset token for a user", {Scope.USERS_WRITE, Scope.ADMIN}, {Role.ADMIN})
    WRITE_PAGES = ("make, change and delete pages", {Scope.PAGES_WRITE}, {Role.ADMIN})
    READ_PAGES = ("read pages", {Scope.STATS_READ, Scope.PAGES_WRITE}, {Role.MEMBER, Role.ADMIN})
    SEND_EVENTS = ("send views, likes and events", {Scope.EVENTS_WRITE}, {Role.ADMIN})
    LIKE = ("like pages for oneself", set[Scope](), {Role.MEMBER, Role.ADMIN})
    SEE_REJECTIONS = ("see how many events were refused", {Scope.ADMIN, Scope.EVENTS_WRITE}, {Role.ADMIN})
    MANAGE_CATALOG = ("change the action catalog", {Scope.ADMIN}, {Role.ADMIN})
    MAKE_ACTION_TOKENS = ("make action tokens", {Scope.ACTIONS_WRITE}, {Role.ADMIN})
    ACT = ("claim actions for oneself", set[Scope](), {Role.MEMBER, Role.ADMIN})
    REVIEW_INTEGRITY = ("review suspicious scores", {Scope.ADMIN}, {Role.ADMIN})
    SEE_SCORES = ("see a user's ledger", {Scope.STATS_READ, Scope.USERS_WRITE, Scope.ADMIN}, {Role.MEMBER, Role.ADMIN})
    HANDLE_PERSONAL_DATA = (
        "see all that is held of a user, or erase it",
        {Scope.USERS_WRITE, Scope.ADMIN},
        {Role.MEMBER, Role.ADMIN},
    )
    READ_BOARDS = ("read boards", {Scope.STATS_READ}, {Role.MEMBER, Role.ADMIN})
    READ_USERS = ("read one user", {Scope.STATS_READ, Scope.USERS_WRITE, Scope.ADMIN}, {Role.MEMBER, Role.ADMIN})

    def __init__(self, what: str, scopes: set[Scope], roles: set[Role]) -> None:
        self.what = what
        self.scopes = frozenset(scopes)
        self.roles = frozenset(roles)


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


class BadKey(Unauthenticated):
    code = "invalid_key"
    title = "The publishable key is not valid"


class OriginNotAllowed(Forbidden):
    code = "origin_not_allowed"
    title = "The publishable key does not count from this origin"


class InsufficientScope(Forbidden):
    code = "insufficient_scope"

    def __init__(self, may: May) -> None:
        needed = " or ".join(sorted(may.scopes)) or "a user's token"
        super().__init__(f"These credentials may not {may.what}; a client needs {needed}")
        scope = " ".join(sorted(may.scopes))
        self.headers = {"WWW-Authenticate": f'Bearer realm="plaudit", error="insufficient_scope", scope="{scope}"'}


def public(view: View) -> View:
    """Anyone may call this route, with a small body."""

    @wraps(view)
    def limited(*args: Any, **kwargs: Any) -> Any:
        request.environ[body.MAX_BYTES] = body.MAX_PUBLIC_BODY_BYTES
        if (request.content_length or 0) > body.MAX_PUBLIC_BODY_BYTES:  # forms too, which Werkzeug reads
            raise TooLarge(f"A body may have at most {body.MAX_PUBLIC_BODY_BYTES} bytes here")
        return view(*args, **kwargs)

    return _declare(limited, Access.PUBLIC)  # type: ignore[return-value]


def operator(view: View) -> View:
    """Only the machine itself, or who holds PLAUDIT_METRICS_TOKEN."""

    @wraps(view)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        if not _is_operator():
            raise Forbidden("Only from this machine, or with the metrics token as a bearer token")
        return view(*args, **kwargs)

    return _declare(guarded, Access.OPERATOR)  # type: ignore[return-value]


def publishable_key(view: View) -> View:
    """Only with a publishable key (`X-Plaudit-Key` or `?key=`), from one of the key's origins."""

    @wraps(view)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        given = request.headers.get("X-Plaudit-Key") or request.args.get("key", "")
        if not given:
            raise NoCredentials("Send a publishable key: X-Plaudit-Key, or ?key=")
        key = credentials.find_key(given)
        if key is None:
            raise BadKey
        _check_origin(key)
        g.publishable_key = key
        logs.bind(tenant_id=key.tenant_id)
        request.environ[body.MAX_BYTES] = body.MAX_PUBLIC_BODY_BYTES
        body.receive(request.environ)  # a slow body takes nothing of the tenant's share
        with services().threads.of(key.tenant_id):
            return view(*args, **kwargs)

    return _declare(guarded, Access.KEY)  # type: ignore[return-value]


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


def requires_or_key(may: May) -> Callable[[View], View]:
    """Callers whom the table allows this; or a publishable key, for what is public."""

    def decorate(view: View) -> View:
        by_token, by_key = requires(may)(view), publishable_key(view)

        @wraps(view)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            shows_key = "X-Plaudit-Key" in request.headers or "key" in request.args
            return (by_key if shows_key and "Authorization" not in request.headers else by_token)(*args, **kwargs)

        return _declare(guarded, may)  # type: ignore[return-value]

    return decorate


def current_reader() -> Reader:
    actor: Actor | None = g.get("actor")
    if actor is not None:
        return Reader(actor.tenant_id, public_only=actor.public_only, is_anonymous=False)
    return Reader.anonymous(current_key().tenant_id)


def current_key() -> KeyInUse:
    key: KeyInUse = g.publishable_key
    return key


def requires(may: May, *, checks_token: bool = False) -> Callable[[View], View]:
    """Only callers whom the table allows this.

    A route that `checks_token` does so in its own transaction (`app.ingest.write`), which spares the busiest routes a
    look-up. With an Idempotency-Key the token is checked here all the same: a replay has no transaction of its own.
    """

    def decorate(view: View) -> View:
        @wraps(view)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            actor = authenticate(check_token=not checks_token or "Idempotency-Key" in request.headers)
            if not allowed(actor, may):
                raise InsufficientScope(may)
            if WRITTEN in request.environ:  # the fast lane has waited for its turn
                return view(*args, **kwargs)
            body.receive(request.environ)  # a slow body takes nothing of the tenant's share
            with services().threads.of(actor.tenant_id):
                return view(*args, **kwargs)

        return _declare(guarded, may)  # type: ignore[return-value]

    return decorate


def declared(view: Callable[..., Any]) -> Access | May | None:
    return getattr(view, "plaudit_access", None)


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
    known = sessions.of_cookie(cookie, essentials().signer)
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
        if check_token and not credentials.client_token_counts(tenant_id, subject, jti):
            raise BadToken
        return Actor("client", tenant_id, subject, scopes, token_id=jti, token_until=int(claims["exp"]))
    raise BadToken


def _check_origin(key: KeyInUse) -> None:
    """Browsers say where a page that sends something is from; a page that only reads may come without."""
    origin = request.headers.get("Origin")
    if origin is None and request.method in {"GET", "HEAD"}:
        return
    if origin not in key.origins:
        raise OriginNotAllowed


def allowed(actor: Actor, may: May) -> bool:
    if actor.kind == "user":
        return actor.role in may.roles
    return bool(may.scopes & actor.scopes) or (Scope.ADMIN in actor.scopes and bool(may.scopes))


def _declare(view: View, access: Access | May) -> View:
    view.plaudit_access = access  # type: ignore[attr-defined]
    return view


def _is_operator() -> bool:
    settings = essentials().settings
    if settings.metrics_token is not None:
        given = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if hmac.compare_digest(given.encode(), settings.metrics_token.encode()):
            return True
    # Where a proxy stands before it, whatever it forwards comes from loopback, and not every proxy says for whom.
    if settings.proxy_hops or settings.has_public_url or "HTTP_X_FORWARDED_FOR" in request.environ:
        return False
    address = caller_address()
    return address is not None and ip_address(address).is_loopback
