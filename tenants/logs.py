"""Log lines: JSON on standard output for any shipper, readable ones on a terminal. Commands log to standard error.

Every line has timestamp, level, service, requestId, userId, tenantId, action, message and data. `begin()` and
`bind()` set the ids for whatever the current request or job logs; `data` has what belongs to one line only.
"""

import logging
import re
import sys
import threading
import time
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from contextvars import ContextVar
from datetime import date
from types import MappingProxyType, NoneType
from typing import IO, Any, Literal
from uuid import UUID

import orjson
import structlog

from tenants import error_reports, security_events
from tenants.security_events import SecurityEvent

Event = MutableMapping[str, Any]

FIELDS = ("timestamp", "level", "service", "requestId", "userId", "tenantId", "action", "message", "data")
# Each text of a line is cut to this many characters before it is searched for secrets: some are from outside.
MAX_LOGGED_CHARS = 16_384
MAX_LOGGED_DEPTH = 8
# Of how many events above its rate a kind of line has one.
SAMPLED = 100
CUT = "…"
# What must never reach a log even when a caller forgets: our own credentials anywhere in a text, also when
# the text was cut in the middle of one. Linear (tests/rules): no alternative backtracks.
_SECRET = re.compile(
    r"""(?ix)
    (?<![a-z0-9]) (?:
        (bearer\s++) [\w.~+/=-]++
        | (?:pk|sk|rt|at|rst|rs|tkt|ds|plt)_ (?: [\w-]{16,}+ | [\w-]*+ (?=…) )
        | eyJ (?: [\w.-]{8,}+ | [\w.-]*+ (?=…) )
    )
    | (://[^/\s:@]*+:) [^/\s@…]++ (?=[@…])
    """
)
_UNMASKED_TYPES = (bool, int, float, NoneType, date, UUID)


def configure(
    *, service: str, log_format: Literal["json", "console"] | None = None, stream: IO[str] | None = None
) -> None:
    """Format structlog's and the standard library's lines the same way."""
    stream = stream or sys.stdout
    use_json = (log_format or ("console" if stream.isatty() else "json")) == "json"
    shared: list[Any] = [
        _add_ids,
        structlog.stdlib.add_log_level,
        _report(service),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        _shape(service),
    ]
    renderer: Any = _to_json if use_json else _ConsoleRenderer(colours=_colours_wanted(stream))
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.ExtraAdder(), *shared],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    for noisy in ("alembic", "rq", "werkzeug"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


# The ids and the route of the current request or job. A new mapping for each change: contexts share them.
_ids: ContextVar[Mapping[str, str]] = ContextVar("plaudit_log_ids", default=MappingProxyType({}))
# Finds the address of the current request's caller, for the few lines that have it.
_address: ContextVar[Callable[[], str | None] | None] = ContextVar("plaudit_log_address", default=None)


def begin(
    *,
    request_id: str,
    user_id: str | None = None,
    tenant_id: str | None = None,
    route: str | None = None,
    address: Callable[[], str | None] | None = None,
) -> None:
    """Start a new request or job: its lines have this id, and none of the one before.

    `route` is for error reports, `address` for security events: it is called for the lines that have it only.
    """
    _address.set(address)
    given = {"requestId": request_id, "userId": user_id, "tenantId": tenant_id, "route": route}
    _ids.set({name: value for name, value in given.items() if value is not None})


def bind(*, user_id: str | None = None, tenant_id: str | None = None) -> None:
    """Name the user and tenant that the following lines are about."""
    ids = {**_ids.get()}
    if user_id is not None:
        ids["userId"] = user_id
    if tenant_id is not None:
        ids["tenantId"] = tenant_id
    _ids.set(ids)


def bound_tenant() -> str | None:
    """The tenant that the following lines are about."""
    return _ids.get().get("tenantId")


def _add_ids(_logger: object, _method: str, event: Event) -> Event:
    for name, value in _ids.get().items():
        event.setdefault(name, value)
    return event


def _report(service: str) -> Any:
    def report(_logger: object, _method: str, event: Event) -> Event:
        """Report an error's line to Sentry; not that of the request, which has failed because of it."""
        level, action, data = event["level"], event.get("action"), event.get("data")
        if level not in {"error", "critical"} or action == "request":
            return event
        line: logging.LogRecord | None = event.get("_record")
        error_reports.report(
            # Lines of libraries contain whatever they are about.
            mask(event["event"]) if line is None else f"{line.name} logged an error ({line.funcName})",
            code=(data.get("code") if isinstance(data, dict) else None) or action or (line.name if line else None),
            route=event.get("route"),
            tags={"service": service, "tenant": event.get("tenantId"), "request_id": event.get("requestId")},
            error=_exception_of(event),
            is_critical=level == "critical",
        )
        return event

    return report


class Sampled:
    """Which events of a busy kind have a line: in each second all up to a rate, and one of a hundred of those above.

    A line takes some 70 µs, so at thousands a second they would take a third of a process. A line that stands for
    several says so in `sampled`: the sum of that (1 where it is missing) is the number of events.
    """

    def __init__(self, max_per_s: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_per_s = max_per_s
        self._clock = clock
        self._lock = threading.Lock()
        self._second = 0
        self._seen = 0  # in this second
        self._above = 0  # of all seconds, those above the rate

    def next(self) -> int:
        """For how many events the line of the next one stands; 0: it has none."""
        if self._seen >= self._max_per_s and self._clock() < self._second + 1:
            # Without the lock, which would cost a kept read several percent. Two threads at once may count as one.
            self._above = above = self._above + 1
            return 0 if above % SAMPLED else SAMPLED
        alone, places = self.of(1)
        return 1 if alone else SAMPLED * len(places)

    def of(self, count: int) -> tuple[int, Sequence[int]]:
        """Of the next so many events: how many have a line each, the first ones; then the places of `SAMPLED` ones."""
        with self._lock:
            second = int(self._clock())
            if second != self._second:
                self._second, self._seen = second, 0
            start = min(max(self._max_per_s - self._seen, 0), count)
            above = self._above
            self._seen += count
            self._above += count - start
        # Of those above, the hundredth, the two hundredth, …: also where no second has a hundred of them.
        return start, range(start + SAMPLED - 1 - above % SAMPLED, count, SAMPLED)


def _exception_of(event: Event) -> BaseException | None:
    match event.get("exc_info"):
        case BaseException() as error:
            return error
        case (_, BaseException() as error, _):
            return error
        case None | False if "_record" not in event:
            return None
    return sys.exc_info()[1]


def audit(event: SecurityEvent, **data: Any) -> None:
    """Log a security event, caused by the bound user from the bound address: one line, for later audits."""
    find_address = _address.get()
    address = security_events.shown_address(find_address()) if find_address is not None else None
    shown = data if address is None else {**data, "address": address}
    structlog.get_logger().info(f"audit: {event.value}", action=f"audit.{event.value}", data=shown)


def _colours_wanted(stream: IO[str]) -> bool:
    import os

    return "NO_COLOR" not in os.environ and (stream.isatty() or "FORCE_COLOR" in os.environ)


def _shape(service: str) -> Any:
    def shape(_logger: object, _method: str, event: Event) -> Event:
        data = dict(event.pop("data", None) or {})
        line = {
            "timestamp": event.pop("timestamp"),
            "level": event.pop("level"),
            "service": service,
            "requestId": mask(event.pop("requestId", None)),
            "userId": mask(event.pop("userId", None)),
            "tenantId": event.pop("tenantId", None),
            "action": event.pop("action", None),
            "message": mask(event.pop("event", "")),
        }
        kept = {name: event[name] for name in ("_record", "_from_structlog") if name in event}
        if "exception" in event:
            data["exception"] = event.pop("exception")
        line["data"] = mask(data)
        return {**line, **kept}

    return shape


def mask(value: Any, *, max_chars: int = MAX_LOGGED_CHARS, max_depth: int = MAX_LOGGED_DEPTH) -> Any:
    """The value with our credentials masked, also inside lists and mappings, and with long texts cut."""
    if isinstance(value, _UNMASKED_TYPES):
        return value
    if isinstance(value, Mapping) and max_depth:
        return {mask(name): mask(inner, max_depth=max_depth - 1) for name, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset) and max_depth:
        return [mask(inner, max_depth=max_depth - 1) for inner in value]
    text = str(value)
    if len(text) > max_chars:
        text = text[:max_chars] + CUT
    return _SECRET.sub(lambda m: f"{m[1] or m[2] or ''}***", text)


def _to_json(_logger: object, _method: str, event: Event) -> str:
    return orjson.dumps(dict(event), default=str, option=orjson.OPT_NON_STR_KEYS).decode()


class _ConsoleRenderer:
    """`12:03:44 info  message  key=value`, for a person at a terminal."""

    LEVEL_COLOURS = {"warning": "33", "error": "31", "critical": "1;31"}  # noqa: RUF012

    def __init__(self, *, colours: bool) -> None:
        self.colours = colours

    def __call__(self, _logger: object, _method: str, event: Event) -> str:
        data = dict(event["data"])
        exception = data.pop("exception", None)
        ids = {"tenant": event["tenantId"], "user": event["userId"], "request": event["requestId"]}
        extras = " ".join(f"{name}={value}" for name, value in {**data, **ids}.items() if value is not None)
        level = self._paint(f"{event['level']:<8}", self.LEVEL_COLOURS.get(event["level"]))
        line = f"{event['timestamp'][11:19]} {level} {event['message']}"
        if extras:
            line += "  " + self._paint(extras, "2")
        return f"{line}\n{exception}" if exception else line

    def _paint(self, text: str, colour: str | None) -> str:
        return f"\x1b[{colour}m{text}\x1b[0m" if self.colours and colour else text
