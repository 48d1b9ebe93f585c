"""The API and dashboard as a WSGI application."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import orjson
from flask import Flask
from flask.json.provider import JSONProvider

from analytics.ingest.group_commit import GroupCommit
from analytics.ingest.visitors import Visitors
from analytics.scores.tokens import ActionTokens
from analytics.wake import Waker
from app import api
from app.api import oauth
from app.http import body, edge, errors, services
from app.http.answer_cache import BoardAnswerCache
from app.http.auth import network_of
from app.http.exports import Exports
from app.http.fast_lane import FastLane
from app.http.services import Services
from app.settings import Settings, SettingsError
from app.ui import assets, dashboard, widgets
from tenants import db, error_reports, fingerprints, liveness, security_events
from tenants import redis as tenants_redis
from tenants.reader_signatures import ReaderSignatures
from tenants.shares import NOBODY, Caller, TenantShare, current_caller, share_of
from tenants.signing import Signer


class OrjsonProvider(JSONProvider):
    def dumps(self, obj: Any, **_kwargs: Any) -> str:
        return orjson.dumps(obj, default=str).decode()

    def loads(self, s: str | bytes, **_kwargs: Any) -> Any:
        return orjson.loads(s)


class PlauditFlask(Flask):
    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        """The outermost layer, around the fast lane too."""
        edge.shorten_target(environ)
        # Until the caller is known, what is looked up for them is on their network's account.
        network = network_of(environ, proxy_hops=self.extensions[services.KEY].settings.proxy_hops)
        current_caller.set(Caller(NOBODY, network))
        return super().__call__(environ, start_response)

    def ensure_sync(self, func: Callable[..., Any]) -> Callable[..., Any]:
        """None of our functions is a coroutine, so Flask need not check for it at every call."""
        return func


def create_app(settings: Settings) -> Flask:
    """Create the application for these settings. It connects to nothing until the first request."""
    connect(settings)
    register_as("web", settings)
    app = new_flask(settings)
    documented = api.install(app)
    dashboard.install(app, documented)
    documented.register_blueprint(widgets.blueprint)
    app.register_blueprint(assets.blueprint)
    install_services(app, settings)
    return app


def install_services(app: Flask, settings: Settings) -> None:
    """Create what the routes share and what has state: keys, open writes, shares, cached answers.

    A second call replaces all of it: the application is then like a new one.
    """
    waker = Waker()
    created = Services(
        settings=settings,
        signer=Signer(issuer=settings.public_url, secret_key=secret_key(settings)),
        ingest=GroupCommit(after=waker),
        waker=waker,
        threads=share_of_threads(settings),
        nobodys_threads=share_of_nobody(settings),
        action_tokens=ActionTokens(secret_key(settings)),
        boards=BoardAnswerCache(),
        exports=Exports(),
        visitors=Visitors(),
        reader_signatures=ReaderSignatures(secret_key(settings)),
        oauth=oauth.authorization_server(app),
    )
    services.install(app, created)
    app.wsgi_app = FastLane(created, partial(Flask.wsgi_app, app))  # type: ignore[method-assign]


def share_of_threads(settings: Settings) -> TenantShare:
    """One tenant's share of the requests that are handled at once and, with those that wait, of all threads."""
    working = share_of(settings.web_threads)
    return TenantShare(working, max_waiting=share_of(settings.all_web_threads) - working)


def share_of_nobody(settings: Settings) -> TenantShare:
    """The share of callers without a tenant: who logs in, or fetches a script.

    It is apart from the tenants' shares, so that a tenant is alone in a process whoever logs in meanwhile; and larger,
    since logins wait for their turn to hash while they use it.
    """
    share = share_of(settings.all_web_threads)
    return TenantShare(share_of(share), max_waiting=share - share_of(share))


def secret_key(settings: Settings) -> str:
    if settings.secret_key is None:
        raise SettingsError("PLAUDIT_SECRET_KEY must be set: at least 32 characters, the same for all processes")
    return settings.secret_key


def register_as(kind: str, settings: Settings) -> None:
    """How this process is listed beside the others, which must have the same secret and public address."""
    public_url = settings.public_url if settings.has_public_url else None
    liveness.register_as(kind, fingerprints.of(secret_key(settings), public_url))


def new_flask(settings: Settings) -> Flask:
    """A Flask application with what every process of ours shares: JSON, errors, headers, logs."""
    app = PlauditFlask("app.ui", static_url_path="/static")
    app.json = OrjsonProvider(app)
    app.config.update(
        MAX_CONTENT_LENGTH=body.MAX_BODY_BYTES,
        PROPAGATE_EXCEPTIONS=False,
    )
    # No redirects to normalise an address: their target would depend on the Host header.
    app.url_map.merge_slashes = False
    app.url_map.strict_slashes = False
    errors.install(app)
    edge.install(app, https=settings.public_url.startswith("https://"), demo_secret=settings.demo_secret)
    return app


def connect(settings: Settings) -> None:
    """Configure the database, Redis, what is logged of addresses and (if set) Sentry of this process."""
    db.configure(
        service_url=settings.service_database_url,
        owner_url=settings.database_url,
        pool_size=settings.request_connections,
        answers_requests=True,
    )
    redis_url = settings.redis_url or "redis://127.0.0.1:6379/0"
    tenants_redis.configure(boards_url=redis_url, queue_url=settings.queue_redis_url or redis_url)
    error_reports.configure(settings.sentry_dsn)
    security_events.show_addresses(settings.log_addresses)
