"""The websocket clients of the benchmarks understand frames of every size, however they are cut."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from loadtests.watchers import Watcher, Watchers

TEXT, CLOSE, PING = 1, 8, 9


def frame(opcode: int, data: bytes) -> bytes:
    if len(data) < 126:
        size = bytes([len(data)])
    elif len(data) < 2**16:
        size = b"\x7e" + len(data).to_bytes(2)
    else:
        size = b"\x7f" + len(data).to_bytes(8)
    return bytes([0x80 | opcode]) + size + data


@contextmanager
def serving(talk: Callable[[socket.socket], None], answer: bytes = b"HTTP/1.1 101 Switching\r\n\r\n") -> Iterator[int]:
    """A server for one client, which answers the handshake and talks."""

    def serve() -> None:
        client, _ = server.accept()
        with client:
            head = b""
            while b"\r\n\r\n" not in head:
                head += client.recv(4096)
            client.sendall(answer)
            talk(client)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            thread.join()


def test_messages_of_every_size_are_received_in_order_and_pings_are_answered() -> None:
    texts = [b'{"n":1}', b'"%s"' % (b"x" * 1000), b'"%s"' % (b"y" * 100_000), b'{"n":4}']
    stream = frame(TEXT, texts[0]) + frame(PING, b"hi") + b"".join(frame(TEXT, text) for text in texts[1:])
    answered: list[bytes] = []

    def talk(client: socket.socket) -> None:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for part in (stream[:1], stream[1:12], stream[12:14], stream[14:]):
            client.sendall(part)
        while len(b"".join(answered)) < 8:
            answered.append(client.recv(4096))

    with serving(talk) as port, Watchers() as watchers:
        watcher = Watcher(port, "/ws")
        watchers.add(watcher)
        assert watchers.wait_for(len(texts), within_s=60)
    assert [data for _, data in watcher.received] == texts
    assert watcher.messages()[0] == {"n": 1}
    assert b"".join(answered) == b"\x8a\x82\0\0\0\0hi", "a pong, masked as a client must"


def test_a_client_whose_server_is_gone_is_closed() -> None:
    with serving(lambda client: client.sendall(frame(CLOSE, b""))) as port:
        watcher = Watcher(port, "/ws")
        while not watcher.is_closed:
            watcher.read()
        watcher.sock.close()
    assert watcher.received == []


def test_a_refused_handshake_is_an_error() -> None:
    with (
        serving(lambda _: None, answer=b"HTTP/1.1 401 Unauthorized\r\n\r\n") as port,
        pytest.raises(AssertionError, match="401"),
    ):
        Watcher(port, "/ws")
