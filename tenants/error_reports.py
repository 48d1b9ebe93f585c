"""Error reports to Sentry, if its address is set: one event for each log line of level error or critical.

Its title is short, and its fingerprint (the exception's type, a code, the route) groups what is one problem. The tenant
is a tag. Nothing that a line or an exception says is sent, since that may be personal or secret: neither texts of
exceptions nor values of variables, addresses, headers, bodies or user ids. The log has them, under the `request_id`.
"""

import contextlib
import threading
import time
from importlib.metadata import version
from typing import Any

# What is sent of an event; the SDK adds more.
_SENT = (
    "event_id",
    "timestamp",
    "level",
    "platform",
    "release",
    "environment",
    "server_name",
    "sdk",
    "exception",
    "message",
    "tags",
    "fingerprint",
    "transaction",
)
MAX_TITLE_CHARS = 100
# One problem may be met by thousands of requests a second: the first of each second is reported.
MIN_PAUSE_S = 1.0
MAX_FINGERPRINTS = 1_000
NONE = "-"

_is_on = False
_reported_at: dict[tuple[str, ...], float] = {}
_lock = threading.Lock()


def configure(sentry_dsn: str | None) -> None:
    """Report this process's errors from now on, or no longer."""
    global _is_on  # noqa: PLW0603  as in tenants.db
    _is_on = bool(sentry_dsn)
    _reported_at.clear()
    if not sentry_dsn:
        return
    import sentry_sdk
    from sentry_sdk.integrations.atexit import AtexitIntegration
    from sentry_sdk.integrations.excepthook import ExcepthookIntegration
    from sentry_sdk.integrations.threading import ThreadingIntegration

    sentry_sdk.init(
        dsn=sentry_dsn,
        release=f"plaudit@{version('plaudit')}",
        max_request_body_size="never",
        include_local_variables=False,
        # The others would send lines of the log, statements and requests as they are.
        default_integrations=False,
        integrations=[
            AtexitIntegration(callback=lambda _pending, _timeout: None),
            ExcepthookIntegration(),
            ThreadingIntegration(propagate_scope=False),
        ],
        max_breadcrumbs=0,
        auto_session_tracking=False,
        send_client_reports=False,
        before_send=_reduce,
    )


def report(
    title: str,
    *,
    code: str | None,
    route: str | None,
    tags: dict[str, str | None],
    error: BaseException | None = None,
    is_critical: bool = False,
) -> None:
    """Send an event. Whatever goes wrong with that, the caller does not notice."""
    if _is_on:
        with contextlib.suppress(Exception):
            _report(title, code or NONE, route or NONE, tags, error, "fatal" if is_critical else "error")


def _report(
    title: str, code: str, route: str, tags: dict[str, str | None], error: BaseException | None, level: str
) -> None:
    import sentry_sdk
    from sentry_sdk.utils import event_from_exception

    if error is None:
        route = NONE  # an outage is one problem, whichever request noticed it
    if not _is_due((type(error).__name__, code, route)):
        return
    event: Any = {"message": title[:MAX_TITLE_CHARS]}
    if error is not None:
        event, _ = event_from_exception(error, client_options=sentry_sdk.get_client().options)
    _describe(event, code, route)
    event |= {"level": level, "tags": {"code": code, **{name: tag for name, tag in tags.items() if tag}}}
    if route != NONE:
        event["transaction"] = route
    sentry_sdk.capture_event(event)


def _is_due(fingerprint: tuple[str, ...]) -> bool:
    now = time.monotonic()
    with _lock:
        if now - _reported_at.get(fingerprint, -MIN_PAUSE_S) < MIN_PAUSE_S:
            return False
        if len(_reported_at) >= MAX_FINGERPRINTS:
            _reported_at.clear()
        _reported_at[fingerprint] = now
        return True


def _describe(event: Any, code: str, route: str) -> None:
    """Set the fingerprint, and replace the texts of exceptions. The last is the title: `KeyError: code in route`."""
    errors = event.get("exception", {}).get("values", [])
    for one in errors:
        one["value"] = ""
    if errors:
        errors[-1]["value"] = (code if route == NONE else f"{code} in {route}")[:MAX_TITLE_CHARS]
    event["fingerprint"] = [str(errors[-1].get("type")) if errors else NONE, code, route]


def _reduce(event: Any, _hint: Any) -> Any:
    if "fingerprint" not in event:  # reported by the SDK: it ended a process or a thread
        _describe(event, "uncaught", NONE)
    return {name: event[name] for name in _SENT if name in event}
