"""Answers as they are sent: heads, and the server's own refusals."""

from collections.abc import Iterable
from functools import cache
from http import HTTPStatus
from random import getrandbits

import orjson

from app.http.errors import CODE_OF_STATUS

NEVER_A_BODY = {204, 304}
_ANY_ID = b"0" * 32

Header = tuple[str, str]


def head_of(status: str, headers: Iterable[Header]) -> bytes:
    """The status line and these headers, each with its line's end. A line more than that is an error of ours."""
    lines = [f"HTTP/1.1 {status}\r\n", *[f"{name}: {value}\r\n" for name, value in headers]]
    head = "".join(lines)
    if head.count("\n") != len(lines) or head.count("\r") != len(lines):
        raise ValueError("a header contains the end of a line")
    return head.encode("latin-1")


def overloaded() -> tuple[bytes, bytes]:
    """The refusal of a request beyond what the process can do: many a second, so they differ only in their id."""
    head, body = _overloaded()
    request_id = b"%032x" % getrandbits(128)
    return head.replace(_ANY_ID, request_id), body.replace(_ANY_ID, request_id)


@cache
def _overloaded() -> tuple[bytes, bytes]:
    detail = "More requests come than can be answered: send it again in a moment"
    return refusal(HTTPStatus.SERVICE_UNAVAILABLE, detail, code="overloaded", request_id=_ANY_ID.decode())


def refusal(
    status: HTTPStatus, detail: str, *, code: str | None = None, request_id: str | None = None
) -> tuple[bytes, bytes]:
    """Head and body of an answer that no route gave, as `application/problem+json`."""
    code = code or CODE_OF_STATUS.get(status, "internal_error")
    request_id = request_id or f"{getrandbits(128):032x}"
    body = orjson.dumps(
        {
            "type": f"urn:plaudit:problem:{code}",
            "title": status.phrase,
            "status": status.value,
            "detail": detail,
            "code": code,
            "request_id": request_id,
        }
    )
    headers = [
        ("Content-Type", "application/problem+json"),
        ("Content-Length", str(len(body))),
        ("Cache-Control", "no-store"),
        ("X-Request-Id", request_id),
    ]
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        headers.append(("Retry-After", "1"))
    return head_of(f"{status.value} {status.phrase}", headers), body
