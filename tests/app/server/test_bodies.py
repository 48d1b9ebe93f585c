"""Bodies: short ones are there when a request is handled, long ones come when somebody reads them."""

import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from app.server import bodies, connection, site
from app.server.bodies import MAX_EARLY_BYTES, TooManySlowBodies
from app.server.requests import Request
from tenants import shares
from tenants.shares import Caller, TenantBusy, current_caller
from tests.app.server.test_connection import CLOSE, Served, answer_with, bodies_of, receive_all, serving
from tests.service import eventually

LONG = b"x" * (MAX_EARLY_BYTES * 10)


def in_thread(read: Callable[[Request], bytes]) -> Callable[[Request], None]:
    """Handles each request in a thread that may wait, and answers with what it reads, or with the error."""

    def run(request: Request) -> None:
        try:
            answer = read(request)
        except (OSError, TenantBusy, TooManySlowBodies) as error:
            answer = type(error).__name__.encode()
        request.answer_soon(*answer_with(answer))

    return lambda request: threading.Thread(target=run, args=(request,)).start()


def head(length: int, *more: bytes) -> bytes:
    return b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n" % length + b"".join(more) + CLOSE


def size(request: Request) -> bytes:
    return str(len(request.body.read())).encode()


def test_a_short_body_is_there_and_is_read_in_parts_and_lines() -> None:
    def read(request: Request) -> bytes:
        assert request.body.is_complete
        body = request.body
        return b"|".join((body.read(2), body.readline(), body.readline(1), body.readline(), body.read(), body.read()))

    with serving(in_thread(read)) as served:
        assert bodies_of(served.send(head(10) + b"ab\nc\nde\nfg")) == [b"ab|\n|c|\n|de\nfg|"]


@pytest.mark.parametrize("is_chunked", [True, False])
def test_a_long_body_is_received_as_far_as_it_is_read(is_chunked: bool) -> None:
    handled: list[Request] = []

    def read(request: Request) -> bytes:
        handled.append(request)
        time.sleep(0.2)
        held = len(request.body._received)
        return f"{held < len(LONG)} {len(request.body.read(100))} {len(request.body.read())}".encode()

    chunked = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n" + CLOSE
    with serving(in_thread(read)) as served, served.connect() as client:
        if is_chunked:
            client.sendall(chunked + b"%x\r\n" % len(LONG) + LONG + b"\r\n0\r\n\r\n")
        else:
            client.sendall(head(len(LONG)) + LONG)
        assert bodies_of(receive_all(client)) == [f"True 100 {len(LONG) - 100}".encode()]


def test_a_long_body_is_asked_for_when_it_is_read() -> None:
    with serving(in_thread(size)) as served, served.connect() as client:
        client.sendall(head(len(LONG), b"Expect: 100-continue\r\n"))
        assert client.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.sendall(LONG)
        assert bodies_of(receive_all(client)) == [str(len(LONG)).encode()]
    with serving(in_thread(lambda _: b"unread")) as served:
        assert bodies_of(served.send(head(len(LONG), b"Expect: 100-continue\r\n"))) == [b"unread"], "or not at all"


def test_a_long_body_that_ends_early_or_comes_too_slowly_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(in_thread(size)) as served:
        assert bodies_of(served.send(head(len(LONG)) + LONG[:-1], half_close=True)) == [b"OSError"]
        monkeypatch.setattr(bodies, "MAX_RECEIVE_S", 0.1)
        assert bodies_of(served.send(head(len(LONG)) + LONG[:-1])) == [b"OSError"]


def test_a_client_that_goes_away_ends_the_waiting() -> None:
    ended: list[Any] = []

    def read(request: Request) -> bytes:
        try:
            return request.body.read()
        except OSError as error:
            ended.append(error)
            raise

    with serving(in_thread(read)) as served:
        with served.connect() as client:
            client.sendall(head(len(LONG)) + b"x")
            time.sleep(0.1)
        eventually(lambda: ended, within_s=5)


def as_named(request: Request) -> bytes:
    """Read for the tenant and the caller that the address names."""
    _, tenant_id, name = request.environ["PATH_INFO"].split("/")
    current_caller.set(Caller(tenant_id, name))
    return size(request)


def begin(served: Served, path: str) -> socket.socket:
    client = served.connect()
    client.sendall(
        b"POST /%b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n" % (path.encode(), len(LONG)) + CLOSE + b"x"
    )
    return client


def end(client: socket.socket) -> None:
    with client:
        client.sendall(LONG[1:])
        assert bodies_of(receive_all(client)) == [str(len(LONG)).encode()]


def test_one_callers_slow_bodies_leave_room_for_colleagues_and_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares, "WAIT_ALONE_S", 0.0)

    def in_use(served: Served) -> int:
        return sum(tenant.total for tenant in served.site.slow_bodies._tenants.values())

    with serving(in_thread(as_named), max_slow_bodies=8) as served:
        assert in_use(served) == 0
        slow = [begin(served, "acme/eve") for _ in range(20)]
        eventually(lambda: in_use(served) == 3)
        refused = [receive_all(client) for client in slow[11:]]  # three are received, eight wait for their turn
        assert b"TenantBusy" in refused[-1]
        for path in ("acme/bob", "acme/ada", "wiki/eve"):
            end(begin(served, path))
        for client in slow:
            client.close()
        eventually(lambda: in_use(served) == 0)


def test_slow_bodies_of_many_tenants_leave_threads_to_everything_else() -> None:
    with serving(in_thread(as_named), max_slow_bodies=2) as served:
        slow = []
        for number in range(6):
            slow.append(begin(served, f"tenant{number}/eve"))
            eventually(lambda: len(served.site.slow_bodies._tenants) == len(slow))
        with begin(served, "wiki/bob") as one_too_many:
            one_too_many.settimeout(10)
            assert bodies_of(receive_all(one_too_many)) == [b"TooManySlowBodies"]
        end(slow.pop())
        end(begin(served, "wiki/bob"))
        for client in slow:
            client.close()


def test_the_rest_of_a_body_is_waited_for_only_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "MAX_LINGER_S", 0.1)
    monkeypatch.setattr(site, "SWEEP_EVERY_S", 0.05)
    with serving(in_thread(lambda _: b"unread")) as served, served.connect() as client:
        client.sendall(head(len(LONG)) + b"x")
        assert bodies_of(receive_all(client)) == [b"unread"]
        eventually(lambda: not served.site.connections, within_s=5)
