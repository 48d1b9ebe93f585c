"""Authorization: who may do what, in one table. Every route declares its right; `tests/rules` fails if one does not.

`@requires` authenticates the caller (`app.http.auth`), checks the table, and stores the `Actor` for the route. Rows of
other tenants need no check here: inside `tenant_tx` they do not exist.
"""

import time
from collections.abc import Callable
from enum import Enum
from functools import wraps
from typing import Any, TypeVar

from flask import g, request

from analytics.scraping import may_scrape
from app.http import body
from app.http.auth import (
    AUTHENTIC_FOR_S,
    WRITTEN,
    Actor,
    NoCredentials,
    OriginNotAllowed,
    authenticate,
    caller_address,
    caller_network,
)
from app.http.services import Services, essentials, services
from tenants import credentials, logs
from tenants.credentials import Scope, ValidKey
from tenants.errors import Forbidden, TooLarge, Unauthenticated
from tenants.shares import NOBODY, Caller, current_caller
from tenants.users import Role

View = TypeVar("View", bound=Callable[..., Any])

# Each of them says that a proxy has passed the request on, whose own address proves nothing.
PROXY_HEADERS = frozenset({"HTTP_FORWARDED", "HTTP_VIA", "HTTP_X_FORWARDED_FOR", "HTTP_X_REAL_IP"})


class Access(Enum):
    """The access of routes that need no user or client."""

    PUBLIC = "anyone"
    PROBE = "anyone, to learn whether the process is well"
    KEY = "a publishable key, from one of its origins"
    OPERATOR = "loopback, or the metrics token"


class May(Enum):
    """What a caller may do, with the client scopes and the user roles that allow it."""

    SEE_ONESELF = ("see who one is", set(Scope), {Role.MEMBER, Role.ADMIN})
    READ_CATALOG = ("read the action catalog", set(Scope), {Role.MEMBER, Role.ADMIN})
    MANAGE_OWN_SESSIONS = ("list and end one's own sessions", set[Scope](), {Role.MEMBER, Role.ADMIN})
    LOG_OUT = ("end one's own session", set[Scope](), {Role.MEMBER, Role.ADMIN})
    CHANGE_OWN_PASSWORD = ("change one's own password", set[Scope](), {Role.MEMBER, Role.ADMIN})
    MANAGE_CREDENTIALS = ("create and revoke clients and keys", {Scope.ADMIN}, {Role.ADMIN})
    MANAGE_TOKENS = ("list, create and revoke static tokens", {Scope.ADMIN}, {Role.MEMBER, Role.ADMIN})
    MANAGE_SETTINGS = ("read and change the tenant's settings", {Scope.ADMIN}, {Role.ADMIN})
    MANAGE_USERS = ("list users, set roles, suspend", {Scope.ADMIN}, {Role.ADMIN})
    CHANGE_PROFILES = ("change users, or as a member one's own profile", {Scope.ADMIN}, {Role.MEMBER, Role.ADMIN})
    WRITE_PROFILES = (
        "create its own users, set their names, pictures and segments",
        {Scope.USERS_WRITE, Scope.ADMIN},
        {Role.ADMIN},
    )
    RESET_PASSWORDS = ("get a reset token for a user", {Scope.USERS_WRITE, Scope.ADMIN}, {Role.ADMIN})
    WRITE_PAGES = ("create, change and delete pages", {Scope.PAGES_WRITE}, {Role.ADMIN})
    READ_PAGES = ("read pages", {Scope.STATS_READ, Scope.PAGES_WRITE}, {Role.MEMBER, Role.ADMIN})
    SEND_EVENTS = ("send views, likes and events", {Scope.EVENTS_WRITE}, {Role.ADMIN})
    LIKE = ("like pages for oneself", set[Scope](), {Role.MEMBER, Role.ADMIN})
    SEE_LIKERS = ("see who likes a page", {Scope.STATS_READ}, {Role.ADMIN})
    SEE_LIKES = ("see what a user likes", {Scope.STATS_READ}, {Role.MEMBER, Role.ADMIN})
    SEE_REJECTIONS = ("see how many events were refused", {Scope.ADMIN, Scope.EVENTS_WRITE}, {Role.ADMIN})
    MANAGE_CATALOG = ("change the action catalog", {Scope.ADMIN}, {Role.ADMIN})
    ISSUE_ACTION_TOKENS = ("issue action tokens", {Scope.ACTIONS_WRITE}, {Role.ADMIN})
    ACT = ("claim actions for oneself", set[Scope](), {Role.MEMBER, Role.ADMIN})
    SEE_AUDIT = ("see the audit of all actions", {Scope.ADMIN}, {Role.ADMIN})
    CORRECT_SCORES = ("correct scores", {Scope.ADMIN}, {Role.ADMIN})
    REVIEW_INTEGRITY = ("review suspicious scores", {Scope.ADMIN}, {Role.ADMIN})
    SEE_SCORES = ("see a user's ledger", {Scope.STATS_READ, Scope.USERS_WRITE, Scope.ADMIN}, {Role.MEMBER, Role.ADMIN})
    HANDLE_PERSONAL_DATA = (
        "see all data about a user, or erase it",
        {Scope.USERS_WRITE, Scope.ADMIN},
        {Role.MEMBER, Role.ADMIN},
    )
    READ_BOARDS = ("read boards", {Scope.STATS_READ}, {Role.MEMBER, Role.ADMIN})
    READ_USERS = ("read one user", {Scope.STATS_READ, Scope.USERS_WRITE, Scope.ADMIN}, {Role.MEMBER, Role.ADMIN})

    QUEST = ("take part in quests", {Scope.QUESTS_WRITE}, {Role.MEMBER, Role.ADMIN})
    READ_QUESTS = ("read quests", {Scope.QUESTS_WRITE, Scope.STATS_READ}, {Role.MEMBER, Role.ADMIN})
    MANAGE_QUESTS = ("manage templates, categories and rewards of quests", {Scope.ADMIN}, {Role.ADMIN})

    def __init__(self, what: str, scopes: set[Scope], roles: set[Role]) -> None:
        self.what = what
        self.scopes = frozenset(scopes)
        self.roles = frozenset(roles)


# The rights of a user whose password somebody else has seen.
BEFORE_PASSWORD_CHANGE = frozenset({May.SEE_ONESELF, May.LOG_OUT, May.CHANGE_OWN_PASSWORD})


class PasswordChangeRequired(Forbidden):
    code = "password_change_required"
    title = "This password was issued by somebody else: change it first, with POST /api/v1/auth/password"


class BadKey(Unauthenticated):
    code = "invalid_key"
    title = "The publishable key is not valid"


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
        request.environ[body.MAX_BYTES] = request.max_content_length = body.MAX_PUBLIC_BODY_BYTES
        if (request.content_length or 0) > body.MAX_PUBLIC_BODY_BYTES:  # forms too, which Werkzeug reads
            raise TooLarge(f"A body may have at most {body.MAX_PUBLIC_BODY_BYTES} bytes here")
        installed = essentials()
        if not isinstance(installed, Services):  # the live process has no threads, and bounds for sockets (`Hub`)
            return view(*args, **kwargs)
        with installed.nobodys_threads.of(NOBODY, caller_network()):
            return view(*args, **kwargs)

    return _declare(limited, Access.PUBLIC)  # type: ignore[return-value]


def probe(view: View) -> View:
    """Anyone may call this route, at an address of `edge.FOR_OPERATORS`: the server has a limit of its own for it.

    It uses no share: a flood by others must not make a process look as if it were ill.
    """
    return _declare(view, Access.PROBE)


def operator(view: View) -> View:
    """Only from the machine itself, or with PLAUDIT_METRICS_TOKEN."""

    @wraps(view)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        if not _is_operator():
            if essentials().settings.metrics_token is None:
                raise Forbidden("PLAUDIT_METRICS_TOKEN is not set, so nobody may read this from here")
            raise Forbidden("Send PLAUDIT_METRICS_TOKEN as a bearer token")
        return view(*args, **kwargs)

    return _declare(guarded, Access.OPERATOR)  # type: ignore[return-value]


def publishable_key(view: View) -> View:
    """Only with a publishable key (`X-Plaudit-Key` or `?key=`), from one of the key's origins."""

    @wraps(view)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        given = request.headers.get("X-Plaudit-Key") or request.args.get("key", "")
        if not given:
            raise NoCredentials("Send a publishable key: X-Plaudit-Key, or ?key=")
        key = credentials.find_sent_key(given, signer=essentials().signer, network=caller_network())
        if key is None:
            raise BadKey
        _check_origin(key)
        g.publishable_key = key
        logs.bind(tenant_id=key.tenant_id)
        network = caller_network()
        current_caller.set(Caller(key.tenant_id, network))
        request.environ[body.MAX_BYTES] = body.MAX_PUBLIC_BODY_BYTES
        body.receive(request.environ)  # before the tenant's share: a slow body must not use it
        with services().threads.of(key.tenant_id, network):
            return view(*args, **kwargs)

    return _declare(guarded, Access.KEY)  # type: ignore[return-value]


def requires_or_key(may: May) -> Callable[[View], View]:
    """Only callers with this right; or a publishable key, for public data."""

    def decorate(view: View) -> View:
        by_token, by_key = requires(may)(view), publishable_key(view)

        @wraps(view)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            has_key = "X-Plaudit-Key" in request.headers or "key" in request.args
            return (by_key if has_key and "Authorization" not in request.headers else by_token)(*args, **kwargs)

        guarded.plaudit_takes_key = True  # type: ignore[attr-defined]
        return _declare(guarded, may)  # type: ignore[return-value]

    return decorate


def requires(may: May) -> Callable[[View], View]:
    """Only callers with this right."""

    def decorate(view: View) -> View:
        @wraps(view)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            since, actor = time.monotonic(), _admit(may)
            if WRITTEN in request.environ:
                # The fast lane keeps the unit that it took for the write until this answer is given (`FastLane`).
                # Another one might be refused here, and so what is committed already.
                return view(*args, **kwargs)
            body.receive(request.environ)  # before the tenant's share: a slow body must not use it
            with services().threads.of(actor.tenant_id, actor.caller):
                if time.monotonic() - since > AUTHENTIC_FOR_S:
                    _admit(may)
                return view(*args, **kwargs)

        return _declare(guarded, may)  # type: ignore[return-value]

    return decorate


def declared(view: Callable[..., Any]) -> Access | May | None:
    return getattr(view, "plaudit_access", None)


def takes_key(view: Callable[..., Any]) -> bool:
    """Whether a publishable key is enough."""
    return declared(view) is Access.KEY or getattr(view, "plaudit_takes_key", False)


def _check_origin(key: ValidKey) -> None:
    """Browsers send `Origin` with every change; a request that only reads may lack it."""
    origin = request.headers.get("Origin")
    if origin is None and request.method in {"GET", "HEAD"}:
        return
    if origin not in key.origins:
        raise OriginNotAllowed


def is_allowed(actor: Actor, may: May) -> bool:
    if actor.must_change_password and may not in BEFORE_PASSWORD_CHANGE:
        return False
    if actor.kind == "user" and not actor.static_token_id:
        return actor.role in may.roles
    in_scope = bool(may.scopes & actor.scopes) or (Scope.ADMIN in actor.scopes and bool(may.scopes))
    return in_scope and (actor.kind == "client" or actor.role in may.roles)


def _admit(may: May) -> Actor:
    """The caller, who has this right now."""
    actor = authenticate()
    if not is_allowed(actor, may):
        raise PasswordChangeRequired if actor.must_change_password else InsufficientScope(may)
    return actor


def _declare(view: View, access: Access | May) -> View:
    view.plaudit_access = access  # type: ignore[attr-defined]
    return view


def _is_operator() -> bool:
    settings = essentials().settings
    return may_scrape(
        token=settings.metrics_token,
        authorization=request.headers.get("Authorization", ""),
        address=caller_address(),
        is_behind_proxy=settings.may_be_behind_proxy or not PROXY_HEADERS.isdisjoint(request.environ),
    )
