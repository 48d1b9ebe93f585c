"""One websocket over a real pair of sockets: whole frames, answers, what is due, and how it ends."""

import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import websocket
from prometheus_client import REGISTRY
from simple_websocket import Server

from app.live import connection
from app.live.connection import GuardedSocket, serve
from app.live.follower import Follower
from app.live.hub import Hub
from tests.app.live.test_hub import KEY, follower_of, hub
from tests.live import Socket
from tests.service import eventually

__all__ = ["hub"]

FRAME_BYTES = 1_000_000


def test_frames_of_several_senders_arrive_whole_and_unmixed() -> None:
    ours, theirs = socket.socketpair()
    with closing(ours), closing(theirs):
        for sock in (ours, theirs):
            sock.settimeout(30)
        guarded = GuardedSocket(ours)
        senders = [threading.Thread(target=guarded.send, args=(name * FRAME_BYTES,)) for name in (b"a", b"b", b"c")]
        for sender in senders:
            sender.start()
        received = b""
        while len(received) < 3 * FRAME_BYTES:
            received += theirs.recv(1 << 16)
        for sender in senders:
            sender.join()
    assert sorted(received[start : start + FRAME_BYTES] for start in range(0, len(received), FRAME_BYTES)) == [
        name * FRAME_BYTES for name in (b"a", b"b", b"c")
    ]


def test_a_client_that_sends_more_than_a_burst_is_read_at_a_bounded_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(connection, "time", SimpleNamespace(sleep=pauses.append, monotonic=lambda: 0.0))
    ours, theirs = socket.socketpair()
    with closing(ours), closing(theirs):
        guarded = GuardedSocket(ours)
        for _ in range(6):
            theirs.sendall(b"x" * 8192)
            assert len(guarded.recv(8192)) == 8192
    assert pauses == [0, 0, 0, 0, 0, 1.0], "32 KiB at once, then 8 KiB each second"


@contextmanager
def served(follower: Follower, answer: Callable[[str | bytes], Iterable[bytes]]) -> Iterator[Socket]:
    """A client whose connection is served by a thread of ours, which has ended at the end."""
    ours, theirs = socket.socketpair()
    headers = {
        "HTTP_HOST": "plaudit.example",
        "HTTP_CONNECTION": "Upgrade",
        "HTTP_UPGRADE": "websocket",
        "HTTP_SEC_WEBSOCKET_VERSION": "13",
        "HTTP_SEC_WEBSOCKET_KEY": "dGhlIHNhbXBsZSBub25jZQ==",
    }
    server = Server({**headers, "werkzeug.socket": GuardedSocket(ours)})
    theirs.settimeout(30)
    handshake = b""
    while not handshake.endswith(b"\r\n\r\n"):
        handshake += theirs.recv(1)
    client = websocket.WebSocket()
    client.sock, client.connected = theirs, True
    serving = threading.Thread(target=serve, args=(server, follower, answer), daemon=True)
    serving.start()
    try:
        yield Socket(client)
    finally:
        theirs.close()
        serving.join(30)
        server.thread.join(30)
        assert not serving.is_alive()


def no_answer(_message: str | bytes) -> Iterable[bytes]:
    return ()


def test_messages_are_answered_and_what_is_due_is_sent(hub: Hub) -> None:
    follower = follower_of(hub)

    def answer(message: str | bytes) -> Iterable[bytes]:
        return [follower.frame("echo", text=message)]

    with served(follower, answer) as client:
        client.raw.send("hello")
        assert client.read(30)["text"] == "hello"
        hub.notify_followers(KEY, 7)
        assert client.read(30)["version"] == 7


def test_a_follower_that_ends_closes_its_socket_with_its_code(hub: Hub) -> None:
    follower = follower_of(hub)
    with served(follower, no_answer) as client:
        follower.end(4401)
        assert client.close_code(30) == 4401


def test_an_error_of_ours_closes_only_this_socket_and_is_logged(
    hub: Hub, logged: Callable[[], list[dict[str, Any]]]
) -> None:
    def fail(_message: str | bytes) -> Iterable[bytes]:
        raise RuntimeError("broken")

    with served(follower_of(hub), fail) as client:
        client.raw.send("hello")
        assert client.close_code(30) == 1011
    assert "live.failed" in [line["action"] for line in logged()]


def test_a_client_that_closes_ends_the_loop_without_an_error(
    hub: Hub, logged: Callable[[], list[dict[str, Any]]]
) -> None:
    with served(follower_of(hub), no_answer) as client:
        client.raw.close(timeout=0)
    assert "live.failed" not in [line["action"] for line in logged()]


def test_a_client_that_answers_no_ping_is_left(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "PING_IDLE_S", 0)
    monkeypatch.setattr(connection, "PONG_WITHIN_S", 0.1)
    before = dropped()
    with served(follower_of(hub), no_answer) as client:
        opcode, _ = client.raw.recv_data(control_frame=True)
        assert opcode == websocket.ABNF.OPCODE_PING
        eventually(lambda: dropped() == before + 1)


def dropped() -> float:
    return REGISTRY.get_sample_value("plaudit_live_dropped_total", {"why": "does not answer"}) or 0
