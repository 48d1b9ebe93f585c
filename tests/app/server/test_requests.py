"""Requests as WSGI describes them."""

from typing import Any

import pytest

from app.server.requests import Request, key_of
from tests.app.server.test_connection import echo, serving


def test_headers_are_those_of_wsgi() -> None:
    seen: list[dict[str, Any]] = []

    def handle(request: Request) -> None:
        seen.append(request.environ)
        echo(request)

    headers = (
        b"Content-Type: a/b\r\nX-Two: 1\r\nx-two: 2\r\nCookie: a=1\r\nCookie: b=2\r\nX_Under: no\r\nX-Raw: \xe4\r\n"
    )
    with serving(handle) as served:
        served.send(b"GET /p HTTP/1.0\r\n" + headers + b"\r\n")
    expected = {
        "CONTENT_TYPE": "a/b",
        "HTTP_X_TWO": "1,2",
        "HTTP_COOKIE": "a=1;b=2",
        "HTTP_X_RAW": "ä",
        "SERVER_PROTOCOL": "HTTP/1.0",
        "REMOTE_ADDR": "127.0.0.1",
        "SERVER_NAME": "127.0.0.1",
    }
    assert {name: seen[0].get(name) for name in expected} == expected
    assert not any("UNDER" in name for name in seen[0])


@pytest.mark.parametrize(
    ("name", "key"),
    [
        (b"Content-Length", "CONTENT_LENGTH"),
        (b"content-type", "CONTENT_TYPE"),
        (b"X-Request-Id", "HTTP_X_REQUEST_ID"),
        (b"X-MADE-up", "HTTP_X_MADE_UP"),
        (b"X_Request_Id", None),
    ],
)
def test_a_header_has_its_key_in_whatever_letters(name: bytes, key: str | None) -> None:
    assert key_of(name) == key
