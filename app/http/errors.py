"""Every error as `application/problem+json` (RFC 9457): the one table from domain errors to HTTP."""

from collections.abc import Mapping
from http import HTTPStatus
from itertools import islice
from math import ceil
from typing import Any

import orjson
import structlog
from flask import Flask, Response, g, request
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from werkzeug.exceptions import HTTPException

from app.http import limit_events
from tenants import errors as domain
from tenants.engines import Away
from tenants.pipelines import READ_ONLY

log = structlog.get_logger()

# An answer may repeat what was sent, up to these bounds.
MAX_DETAIL_CHARS = 1_000
MAX_FIELDS = 20
MAX_FIELD_NAME_CHARS = 100
MAX_MESSAGE_CHARS = 400


class UpgradeRequired(domain.DomainError):
    """A websocket's address, opened without asking for one."""

    code = "upgrade_required"
    title = "This is a websocket: open it with Upgrade: websocket"
    headers = {"Upgrade": "websocket", "Connection": "Upgrade"}  # noqa: RUF012


STATUS_OF: dict[type[domain.DomainError], HTTPStatus] = {
    domain.Malformed: HTTPStatus.BAD_REQUEST,
    domain.Unauthenticated: HTTPStatus.UNAUTHORIZED,
    domain.Forbidden: HTTPStatus.FORBIDDEN,
    domain.NotFound: HTTPStatus.NOT_FOUND,
    domain.Conflict: HTTPStatus.CONFLICT,
    domain.Stale: HTTPStatus.PRECONDITION_FAILED,
    UpgradeRequired: HTTPStatus.UPGRADE_REQUIRED,
    domain.PreconditionRequired: HTTPStatus.PRECONDITION_REQUIRED,
    domain.TooLarge: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    domain.WrongType: HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
    domain.Invalid: HTTPStatus.UNPROCESSABLE_ENTITY,
    domain.Limited: HTTPStatus.TOO_MANY_REQUESTS,
    domain.Unavailable: HTTPStatus.SERVICE_UNAVAILABLE,
}

# Our codes for the statuses that Flask and Werkzeug raise.
CODE_OF_STATUS = {
    400: "malformed",
    401: "unauthenticated",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    406: "not_acceptable",
    408: "timeout",
    409: "conflict",
    412: "stale",
    413: "too_large",
    414: "too_large",
    415: "unsupported_media_type",
    422: "invalid",
    426: "upgrade_required",
    428: "precondition_required",
    429: "rate_limited",
    431: "too_large",
    503: "unavailable",
}

# RFC 9110: every 401 says how to authenticate.
CHALLENGE = 'Bearer realm="plaudit"'

DETAIL_OF_STATUS = {
    404: "There is nothing at this address",
    405: "This address does not support this method",
    413: "The body is larger than this service accepts",
    414: "A path may have at most 8192 characters, and with its query 16384",
}


class DatabaseUnavailable(domain.Unavailable):
    code = "database_unavailable"
    title = "The database is not available"


class Overloaded(domain.Unavailable):
    code = "overloaded"
    title = "Too many requests are waiting for the database"


def install(app: Flask) -> None:
    app.register_error_handler(domain.DomainError, answer_domain_error)
    app.register_error_handler(HTTPException, answer_http_error)
    app.register_error_handler(DBAPIError, answer_database_error)
    app.register_error_handler(PoolTimeoutError, answer_pool_timeout)
    app.register_error_handler(Exception, answer_bug)


def problem(
    status: int,
    *,
    code: str,
    title: str,
    detail: str,
    errors: domain.FieldErrors | None = None,
    headers: dict[str, str] | None = None,
    members: Mapping[str, object] | None = None,
) -> Response:
    """`members`: fields that only this kind of problem has."""
    body: dict[str, Any] = {
        "type": f"urn:plaudit:problem:{code}",
        "title": title,
        "status": status,
        "detail": detail[:MAX_DETAIL_CHARS],
        "code": code,
        "request_id": g.get("request_id"),
        **(members or {}),
    }
    if errors:
        body["errors"] = {
            name[:MAX_FIELD_NAME_CHARS]: [text[:MAX_MESSAGE_CHARS] for text in texts[:MAX_FIELDS]]
            for name, texts in islice(errors.items(), MAX_FIELDS)
        }
    g.problem_code = code
    shown = orjson.dumps(body, option=orjson.OPT_UTC_Z)
    return Response(shown, status=status, content_type="application/problem+json", headers=headers or {})


def answer_domain_error(error: domain.DomainError) -> Response:
    if isinstance(error, domain.Limited):
        limit_events.note(error)
    status = next(STATUS_OF[family] for family in type(error).__mro__ if family in STATUS_OF)
    headers = {}
    if error.retry_after_s is not None:
        headers["Retry-After"] = str(max(1, ceil(error.retry_after_s)))
    elif status == HTTPStatus.SERVICE_UNAVAILABLE:
        headers["Retry-After"] = "1"
    headers |= getattr(error, "headers", {})
    if status == HTTPStatus.UNAUTHORIZED:
        headers.setdefault("WWW-Authenticate", CHALLENGE)
    return problem(
        status,
        code=error.code,
        title=error.title,
        detail=error.detail,
        errors=error.errors,
        headers=headers,
        members=getattr(error, "members", None),
    )


def answer_http_error(error: HTTPException) -> Response:
    if error.code is None or error.code < 400:
        return error.get_response()  # type: ignore[return-value]  # a redirect is an HTTPException too
    status = error.code
    headers = {name: value for name, value in error.get_headers() if name in {"Allow", "Retry-After"}}
    data = getattr(error, "data", None) or {}
    messages = _flatten(data.get("messages", {}))
    detail = DETAIL_OF_STATUS.get(status) or error.description or HTTPStatus(status).phrase
    if messages:
        detail = domain.first_messages(messages)
    return problem(
        status,
        code=CODE_OF_STATUS.get(status, "error"),
        title=HTTPStatus(status).phrase,
        detail=detail,
        errors=messages or None,
        headers=headers,
    )


def answer_database_error(error: DBAPIError) -> Response:
    """An outage is a 503, as is a read-only server, such as a standby; a statement that it refuses is a bug."""
    sqlstate = str(getattr(error.orig, "sqlstate", None) or "")
    is_timeout = sqlstate in {"57014", "55P03", "25P03"}
    is_too_large = sqlstate.startswith("54")
    is_read_only = sqlstate == READ_ONLY
    is_outage = error.connection_invalidated or is_timeout or isinstance(error, OperationalError | InterfaceError)
    if is_outage and not is_too_large:
        if not isinstance(error.orig, Away):  # one line of the process says so
            log.error(
                "the database is not available",
                action="database.error",
                data={"error": type(error.orig).__name__},
            )
        return answer_domain_error(DatabaseUnavailable("The database is read-only" if is_read_only else None))
    if is_too_large or sqlstate.startswith("22"):
        log.warning("PostgreSQL refused a value", action="database.value", data={"error": type(error.orig).__name__})
        return answer_domain_error(domain.Invalid("A value cannot be stored"))
    return answer_bug(error)


def answer_pool_timeout(_error: PoolTimeoutError) -> Response:
    return answer_domain_error(Overloaded())


def answer_bug(error: Exception) -> Response:
    code = "internal_error"
    log.error("unhandled error", action="error", exc_info=error, data={"path": request.path, "code": code})
    return problem(
        500,
        code=code,
        title="Something went wrong on our side",
        detail="The error was logged under this request id",
    )


def _flatten(messages: Any, prefix: str = "") -> dict[str, list[str]]:
    """Marshmallow's nested messages as `field.sub → [texts]`, without the location (`json`, `query`, …)."""
    if isinstance(messages, list):
        return {prefix or "body": [str(text) for text in messages]}
    if not isinstance(messages, dict):
        return {prefix or "body": [str(messages)]}
    flat: dict[str, list[str]] = {}
    for name, inner in messages.items():
        is_location = not prefix and name in {"json", "query", "form", "headers", "path"} and isinstance(inner, dict)
        path = "" if is_location or name == "_schema" else str(name)
        flat |= _flatten(inner, ".".join(part for part in (prefix, path) if part))
    return flat
