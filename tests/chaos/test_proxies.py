"""The proxy passes on, delays, swallows, resets and cuts what two processes send each other."""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from tests.chaos.proxies import Mode, Proxies, Proxy
from tests.service import eventually

ANSWER = b"0123456789"


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    """In front of a server that answers each message with ten bytes."""
    proxies = Proxies()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=_serve, args=[listening], daemon=True).start()
        port = listening.getsockname()[1]
        yield proxies.add("test", lambda: port)
        listening.shutdown(socket.SHUT_RDWR)
    proxies.close()


def _serve(listening: socket.socket) -> None:
    try:
        while True:
            connection, _ = listening.accept()
            threading.Thread(target=_answer, args=[connection], daemon=True).start()
    except OSError:
        return


def _answer(connection: socket.socket) -> None:
    with connection, contextlib.suppress(ConnectionResetError):
        while connection.recv(100):
            connection.sendall(ANSWER)


def connect(proxy: Proxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=60)


def open_and_ask(proxy: Proxy) -> bytes:
    with connect(proxy) as caller:
        caller.sendall(b"?")
        return caller.recv(100)


def test_it_passes_on_and_delays(proxy: Proxy) -> None:
    with connect(proxy) as caller:
        caller.sendall(b"?")
        assert caller.recv(100) == ANSWER
        proxy.set(Mode.DELAY, delay_s=0.3)
        began = time.monotonic()
        caller.sendall(b"?")
        assert caller.recv(100) == ANSWER
        assert time.monotonic() - began >= 0.6


def test_what_a_blackhole_has_held_back_arrives_when_it_ends(proxy: Proxy) -> None:
    with connect(proxy) as caller:
        proxy.set(Mode.BLACKHOLE)
        caller.sendall(b"?")
        caller.settimeout(0.3)
        with pytest.raises(TimeoutError):
            caller.recv(100)
        proxy.set(Mode.PASS)
        caller.settimeout(60)
        assert caller.recv(100) == ANSWER


def test_it_resets_open_connections_and_new_ones_until_it_passes_again(proxy: Proxy) -> None:
    with connect(proxy) as caller:
        caller.sendall(b"?")
        assert caller.recv(100) == ANSWER
        proxy.set(Mode.RESET)
        with pytest.raises(ConnectionResetError):
            caller.recv(100)
    with pytest.raises(ConnectionResetError):
        open_and_ask(proxy)
    proxy.set(Mode.PASS)
    assert open_and_ask(proxy) == ANSWER


def test_it_cuts_an_answer_in_the_middle(proxy: Proxy) -> None:
    with connect(proxy) as caller:
        proxy.set(Mode.CUT, cut_after_bytes=4)
        caller.sendall(b"?")
        assert caller.recv(100, socket.MSG_WAITALL) == ANSWER[:4]


def test_an_end_on_one_side_is_one_on_the_other(proxy: Proxy) -> None:
    with connect(proxy) as caller:
        caller.sendall(b"?")
        assert caller.recv(100) == ANSWER
        assert proxy.links == 1
    eventually(lambda: proxy.links == 0)
