"""The live process as gunicorn runs it: it refuses as the rest of the service does."""

import json
import socket

import pytest

from tests.live import Live


@pytest.mark.parametrize(
    ("request_", "status", "code"),
    [
        (b"GET /ws/leaderboards?ticket=tkt_x\r\n\r\n", 400, "malformed"),
        (b"GET /" + b"a" * 5_000 + b" HTTP/1.1\r\n\r\n", 414, "too_large"),
        (b"GET / HTTP/1.1\r\nX: " + b"a" * 9_000 + b"\r\n\r\n", 431, "too_large"),
    ],
)
def test_what_gunicorn_cannot_read_is_a_problem(live: Live, request_: bytes, status: int, code: str) -> None:
    with socket.create_connection(("127.0.0.1", live.port), timeout=5) as raw:
        raw.sendall(request_)
        received = b"".join(iter(lambda: raw.recv(65536), b""))
    head, _, body = received.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status), received
    assert b"Content-Type: application/problem+json" in head
    assert (json.loads(body)["status"], json.loads(body)["code"]) == (status, code)
