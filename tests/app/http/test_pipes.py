"""Long answers through a pipe: as fast as the reader reads, and no longer than there is one."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.http import pipes
from app.http.pipes import send_through_pipe
from tests.service import eventually

PIECE = b"x" * 65_536


class Server:
    """Opens the file that it is given, as the real one does; `read` is up to the test."""

    def __init__(self) -> None:
        self.opened: list[Any] = []
        self.path = ""

    def response_file(self, status: int, headers: list[tuple[str, str]], path: str) -> None:
        self.answer, self.path = (status, headers), path
        threading.Thread(target=lambda: self.opened.append(open(path, "rb", buffering=0))).start()  # noqa: SIM115, PTH123


class Pieces:
    """Countless pieces; it counts those that were taken."""

    def __init__(self) -> None:
        self.taken = 0

    def __iter__(self) -> Iterator[bytes]:
        while True:
            self.taken += 1
            yield PIECE


def send(server: Any, pieces: Any) -> threading.Thread:
    thread = threading.Thread(target=send_through_pipe, args=(server, 200, [("a", "b")], pieces))
    thread.start()
    return thread


def test_the_reader_gets_every_piece_and_nothing_is_left_behind() -> None:
    server = Server()
    sending = send(server, [b"one ", b"", b"two " * 50_000])
    eventually(lambda: server.opened)
    assert server.opened[0].read(4) == b"one "
    assert len(server.opened[0].readall()) == 200_000
    sending.join(10)
    assert not sending.is_alive()
    assert server.answer == (200, [("a", "b")])
    assert not Path(server.path).parent.exists()


def test_pieces_are_taken_as_they_are_read() -> None:
    server, pieces = Server(), Pieces()
    sending = send(server, pieces)
    eventually(lambda: pieces.taken >= 2 and server.opened)
    sending.join(0.3)
    assert pieces.taken == 2, "one is in the pipe, and one waits to be"
    for _ in range(16):
        server.opened[0].read(len(PIECE))
    eventually(lambda: pieces.taken > 2)
    server.opened[0].close()
    sending.join(10)
    assert not sending.is_alive(), "a reader who goes away ends it"


def test_who_reads_nothing_for_long_gets_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipes, "MAX_STALLED_S", 0.1)
    server = Server()
    sending = send(server, Pieces())
    sending.join(10)
    assert not sending.is_alive()


def test_an_answer_that_nobody_opens_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone(Server):
        def response_file(self, *_answer: Any) -> None:
            """The client has closed the connection."""

    monkeypatch.setattr(pipes, "OPEN_WITHIN_S", 0.05)
    pieces = Pieces()
    send(Gone(), pieces).join(10)
    assert pieces.taken == 0
