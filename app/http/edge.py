"""What happens around every request: its id, its limits, its headers, its log line and its metrics."""

import hmac
import re
import time
from collections.abc import Callable
from random import getrandbits
from typing import Any, TypeVar

import structlog
from flask import Flask, Request, Response, current_app, g, request
from werkzeug.exceptions import RequestURITooLarge

from app.http import request_counts
from app.http.auth import caller_address
from app.http.fast_answer import DEFAULT_HEADERS
from tenants import liveness, logs
from tenants.errors import Malformed, Unavailable

log = structlog.get_logger()

REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
SLOW_S = 0.5
# Successes of quiet routes, in a second and process, each with a line of its own; of those above one of a hundred. A
# request has no claim to a line because it sends an `X-Request-Id`: proxies give one to all.
MAX_QUIET_LINES_PER_S = 10
# Of a path without a route, in the log.
MAX_LOGGED_CHARS = 200
# A path (percent-decoded, as WSGI servers pass it), and a path with its query.
MAX_PATH_CHARS = 8 * 1024
MAX_TARGET_CHARS = 16 * 1024
TOO_LONG = "plaudit.target_too_long"

# What is answered in every state.
FOR_OPERATORS = ("/health/", "/metrics")
READY_ROUTE = "/health/ready"

DEMO_HEADER = "HTTP_X_PLAUDIT_DEMO"

CORS_ALLOWED_HEADERS = (
    "Authorization, Content-Type, Content-Encoding, Idempotency-Key, "
    "If-Match, If-None-Match, X-Plaudit-Key, X-Request-Id"
)
CORS_EXPOSED_HEADERS = "ETag, Idempotent-Replay, Location, RateLimit, RateLimit-Policy, Retry-After, X-Request-Id"
CORS_PATHS = ("/api/", "/oauth/", "/.well-known/")

View = TypeVar("View", bound=Callable[..., Any])


class SettingsDiffer(Unavailable):
    code = "settings_differ"
    title = "This server has other settings than the others of this service"


def quiet(view: View) -> View:
    """For a busy route: successful requests are counted in /metrics, and above a rate not logged one by one."""
    view.plaudit_is_quiet = True  # type: ignore[attr-defined]
    return view


def is_quiet(req: Request) -> bool:
    view = current_app.view_functions.get(req.endpoint or "")
    return getattr(view, "plaudit_is_quiet", False)


def install(app: Flask, *, https: bool, demo_secret: str | None) -> None:
    always = always_headers(https=https)

    app.before_request(begin)

    # One function before and one after: on a busy route such hooks take much of the time.
    @app.after_request
    def finish(response: Response) -> Response:
        req = request._get_current_object()  # type: ignore[attr-defined]  # noqa: SLF001  the request behind the proxy
        headers = response.headers
        headers.extend([*always, ("X-Request-Id", g.request_id)])
        for name, value in DEFAULT_HEADERS:
            if name not in headers:
                headers.add(name, value)
        if "HTTP_ORIGIN" in req.environ and req.path.startswith(CORS_PATHS):
            headers["Access-Control-Allow-Origin"] = "*"
            headers["Access-Control-Expose-Headers"] = CORS_EXPOSED_HEADERS
        record(req, response, demo_secret)
        return response


def always_headers(*, https: bool) -> list[tuple[str, str]]:
    hsts = [("Strict-Transport-Security", "max-age=31536000")] if https else []
    return [("X-Content-Type-Options", "nosniff"), *hsts]


def request_id_of(given: str | None) -> str:
    """The caller's own id for the request (`X-Request-Id`), or a new one."""
    return given if given and REQUEST_ID.fullmatch(given) else f"{getrandbits(128):032x}"


def shorten_target(environ: dict[str, Any]) -> None:
    """Before anything reads the address: truncate one that is too long, which `begin` then refuses."""
    path, query = environ.get("PATH_INFO", ""), environ.get("QUERY_STRING", "")
    if len(path) > MAX_PATH_CHARS or len(path) + len("?") + len(query) > MAX_TARGET_CHARS:
        # The fast lane, which answers before `begin`, leaves such a request to the routes.
        environ |= {TOO_LONG: True, "PATH_INFO": path[:MAX_LOGGED_CHARS] + "...", "QUERY_STRING": ""}


def begin() -> Response | None:
    req = request._get_current_object()  # type: ignore[attr-defined]  # noqa: SLF001
    environ = req.environ
    g.started = time.perf_counter()
    g.request_id = request_id_of(environ.get("HTTP_X_REQUEST_ID"))
    route = f"{req.method} {req.url_rule.rule}" if req.url_rule is not None else None
    logs.begin(request_id=g.request_id, route=route, address=caller_address)
    if TOO_LONG in environ:
        raise RequestURITooLarge
    if "\x00" in environ.get("PATH_INFO", "") or "%00" in environ.get("QUERY_STRING", ""):
        raise Malformed("An address may not contain the NUL character")
    # On the event loop nobody asks: a process that differs trusts no memory, so threads answer all of its requests.
    difference = liveness.difference()
    if difference is not None and not environ.get("PATH_INFO", "").startswith(FOR_OPERATORS):
        raise SettingsDiffer(f"Its {difference.variable} is another one: its log and /health/ready say more")
    return answer_preflight(req) if req.method == "OPTIONS" else None


def answer_preflight(req: Request) -> Response | None:
    """Any page may call (without cookies and our own header); a publishable key is checked against its origins."""
    if "Access-Control-Request-Method" not in req.headers:
        return None
    response = Response(status=204)
    response.headers["Access-Control-Allow-Methods"] = "GET, HEAD, POST, PUT, PATCH, DELETE"
    response.headers["Access-Control-Allow-Headers"] = CORS_ALLOWED_HEADERS
    response.headers["Access-Control-Max-Age"] = "600"
    return response


def is_sent_by_demo(given: str | None, demo_secret: str | None) -> bool:
    """Whether `plaudit up` itself sent this, or the demo's traffic, by its header.

    `plaudit up` creates a secret at each start, for itself, the API and the traffic only. So nobody else, whatever
    their credentials, can keep a request out of the log; without it there is no secret, and the result is always False.
    """
    return given is not None and demo_secret is not None and hmac.compare_digest(given.encode(), demo_secret.encode())


def record(req: Request, response: Response, demo_secret: str | None) -> None:
    """Count the request, and log it unless it is the demo's own; of those that succeeded on quiet routes some.

    An error of ours is logged whoever noticed it; that the service is not ready, told to `plaudit up`, is none. Probes
    and scrapes that succeed are not logged.
    """
    seconds = time.perf_counter() - g.started
    has_route = req.url_rule is not None
    route = req.url_rule.rule if req.url_rule is not None else "(none)"
    status = response.status_code
    request_counts.add(req.method if has_route else "(any)", route, status, seconds)
    is_notable = status >= 400 or seconds > SLOW_S or not is_quiet(req)
    is_error = status >= 500 and not (status == 503 and route == READY_ROUTE)
    if not is_error and is_sent_by_demo(req.environ.get(DEMO_HEADER), demo_secret):
        return
    if not is_notable and route.startswith(FOR_OPERATORS):
        return
    stands_for = 1 if is_notable else quiet_lines.next()
    if stands_for:
        logged_route = route if has_route else logs.mask(req.path, max_chars=MAX_LOGGED_CHARS)
        code = g.get("problem_code")
        log_request(req.method[:MAX_LOGGED_CHARS], logged_route, status, seconds, code=code, stands_for=stands_for)


def log_request(
    method: str, route: str, status: int, seconds: float, *, code: str | None = None, stands_for: int = 1
) -> None:
    write = log.error if status >= 500 else log.info
    data = {"ms": round(seconds * 1000, 1), "code": code, **({"sampled": stands_for} if stands_for > 1 else {})}
    write(f"{method} {route!r} {status}", action="request", data=data)


quiet_lines = logs.Sampled(MAX_QUIET_LINES_PER_S)
