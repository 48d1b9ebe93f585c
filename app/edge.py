"""What happens around every request: its id, its limits, its headers, its log line and its metrics."""

import re
import time
from uuid import uuid4

import structlog
from flask import Flask, Response, g, request
from prometheus_client import Counter, Histogram

from tenants import logs
from tenants.errors import Malformed

log = structlog.get_logger()

REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
SLOW_S = 0.5
# Busy routes that go well are counted in /metrics and not logged one by one.
QUIET = frozenset(
    {
        "health.live",
        "health.ready",
        "metrics.metrics",
        "events.send_events",
        "events.send_view",
        "events.beacon",
        "likes.like",
        "likes.unlike",
        "likes.like_for",
        "likes.unlike_for",
    }
)

REQUESTS = Counter("plaudit_http_requests_total", "Requests answered.", ["method", "route", "status"])
SECONDS = Histogram(
    "plaudit_http_request_seconds",
    "Time to answer.",
    ["route"],
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5),
)

CORS_ALLOWED_HEADERS = (
    "Authorization, Content-Type, Content-Encoding, Idempotency-Key, "
    "If-Match, If-None-Match, X-Plaudit-Key, X-Request-Id"
)
CORS_EXPOSED_HEADERS = "ETag, Idempotent-Replay, Location, RateLimit, RateLimit-Policy, Retry-After, X-Request-Id"
API_CSP = "default-src 'none'; frame-ancestors 'none'"


def install(app: Flask, *, https: bool) -> None:
    app.before_request(begin)
    app.before_request(answer_preflight)
    app.after_request(add_cors)

    @app.after_request
    def finish(response: Response) -> Response:
        add_security_headers(response, https=https)
        return record(response)

    @app.teardown_request
    def forget(_error: BaseException | None) -> None:
        logs.unbind()


def begin() -> None:
    g.started = time.perf_counter()
    logs.unbind()
    given = request.headers.get("X-Request-Id", "")
    g.request_id = given if REQUEST_ID.fullmatch(given) else uuid4().hex
    logs.bind(request_id=g.request_id)
    if "\x00" in request.path or b"%00" in request.query_string:
        raise Malformed("An address may not contain the NUL character")


def answer_preflight() -> Response | None:
    """Any page may ask (no cookie is ever sent along); what a publishable key may do depends on its origins."""
    if request.method != "OPTIONS" or "Access-Control-Request-Method" not in request.headers:
        return None
    response = Response(status=204)
    response.headers["Access-Control-Allow-Methods"] = "GET, HEAD, POST, PUT, PATCH, DELETE"
    response.headers["Access-Control-Allow-Headers"] = CORS_ALLOWED_HEADERS
    response.headers["Access-Control-Max-Age"] = "600"
    return response


def add_cors(response: Response) -> Response:
    if "Origin" in request.headers and request.path.startswith(("/api/", "/oauth/", "/.well-known/")):
        response.headers["Access-Control-Allow-Origin"] = "*"
        response.headers["Access-Control-Expose-Headers"] = CORS_EXPOSED_HEADERS
    return response


def add_security_headers(response: Response, *, https: bool) -> None:
    headers = response.headers
    headers["X-Request-Id"] = g.request_id
    headers["X-Content-Type-Options"] = "nosniff"
    headers.setdefault("Content-Security-Policy", API_CSP)
    headers.setdefault("Referrer-Policy", "no-referrer")
    headers.setdefault("Cache-Control", "no-store")
    if https:
        headers["Strict-Transport-Security"] = "max-age=31536000"


def record(response: Response) -> Response:
    seconds = time.perf_counter() - g.started
    route = request.url_rule.rule if request.url_rule else "(none)"
    status = response.status_code
    REQUESTS.labels(request.method if request.url_rule else "(any)", route, str(status)).inc()
    SECONDS.labels(route).observe(seconds)
    if status >= 400 or seconds > SLOW_S or request.endpoint not in QUIET:
        write = log.error if status >= 500 else log.info
        write(
            f"{request.method} {route if request.url_rule else logs.mask(request.path)[:200]!r} {status}",
            action="request",
            data={"ms": round(seconds * 1000, 1), "code": g.get("problem_code")},
        )
    return response
