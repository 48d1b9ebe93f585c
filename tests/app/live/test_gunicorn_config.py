"""The live process as gunicorn runs it: it stops cleanly, and refuses as the rest of the service does."""

import json
import socket
import time

import pytest

from app.run.data_folder import Addresses
from app.settings import Settings
from tests.app.live.conftest import BOARD
from tests.live import Live
from tests.people import Caller


def test_a_process_that_goes_says_so(settings: Settings, addresses: Addresses, wiki: Caller) -> None:
    with Live(settings, addresses) as going:
        sockets = [going.follow(wiki, **BOARD) for _ in range(5)]
        for socket in sockets:
            socket.read_until("subscribed")
        going.process.terminate()
        assert [socket.close_code() for socket in sockets] == [1012] * 5
        began = time.monotonic()
        going.process.wait(10)
        assert time.monotonic() - began < 5
        assert "Traceback" not in going.log_text()
        assert f"127.0.0.1:{going.port}" in going.log_text()


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
