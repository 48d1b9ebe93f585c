"""The operating system closes the connections of readers who read nothing. (With a server: tests/attacks.)"""

import socket
from collections.abc import Iterator

import pytest

from app.http import stalled_readers
from tests.service import eventually

if not hasattr(socket, "TCP_USER_TIMEOUT"):
    pytest.skip("only Linux has TCP_USER_TIMEOUT", allow_module_level=True)


def timeout_s(sock: socket.socket) -> float:
    return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) / 1000


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def test_connections_inherit_the_timeout_of_the_port(listening: socket.socket) -> None:
    port = listening.getsockname()[1]
    with socket.create_server(("127.0.0.1", 0)) as other:
        assert stalled_readers.set_timeout(port)
        assert timeout_s(listening) == stalled_readers.MAX_STALLED_S
        assert timeout_s(other) == 0, "only the server's own port"
    with socket.create_connection(listening.getsockname()), listening.accept()[0] as accepted:
        assert timeout_s(accepted) == stalled_readers.MAX_STALLED_S


def test_a_connection_that_was_open_before_gets_the_timeout_too(listening: socket.socket) -> None:
    with socket.create_connection(listening.getsockname()), listening.accept()[0] as accepted:
        stalled_readers.set_timeout(listening.getsockname()[1])
        assert timeout_s(accepted) == stalled_readers.MAX_STALLED_S
        accepted.sendall(b"still open")


def test_it_says_whether_the_process_listens_there(listening: socket.socket) -> None:
    port = listening.getsockname()[1]
    with socket.create_connection(listening.getsockname()), listening.accept()[0]:
        listening.close()
        assert not stalled_readers.set_timeout(port), "a connection alone is no server"


def test_the_timeout_is_set_as_soon_as_the_process_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stalled_readers, "RETRY_EVERY_S", 0.01)
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        stalled_readers.set_timeout_when_listening(server.getsockname()[1])
        server.listen()
        eventually(lambda: timeout_s(server) == stalled_readers.MAX_STALLED_S)
