"""Long answers, through a pipe: the server sends what it reads there, as quickly as the client reads.

The server's own interface for streams (granian 2.8) takes whatever it is given into memory, without a bound; but a file
it reads piece by piece, as it can send it. A named pipe is a file that we can write meanwhile: a few pieces fit in,
and then writing waits for the reader.
"""

import contextlib
import errno
import os
import select
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

# Until the server opens the pipe.
OPEN_WITHIN_S = 5.0
OPEN_EVERY_S = 0.002
# For a reader who reads nothing.
MAX_STALLED_S = 30.0


class ReaderGone(Exception):
    """Nobody reads the answer, or nobody any more."""


def send_through_pipe(server: Any, status: int, headers: list[tuple[str, str]], pieces: Iterable[bytes]) -> None:
    """Answer with these pieces. Returns when the server has read all of them, or the reader is gone."""
    with contextlib.suppress(ReaderGone), _opened(server, status, headers) as pipe:
        for piece in pieces:
            _write(pipe, piece)


@contextlib.contextmanager
def _opened(server: Any, status: int, headers: list[tuple[str, str]]) -> Iterator[int]:
    """A pipe that the server reads. Its name is gone once both ends are open."""
    with tempfile.TemporaryDirectory(prefix="plaudit-") as folder:
        path = Path(folder) / "answer"
        os.mkfifo(path, mode=0o600)
        server.response_file(status, headers, str(path))
        pipe = _open_when_read(path)
    try:
        yield pipe
    finally:
        os.close(pipe)


def _open_when_read(path: Path) -> int:
    deadline = time.monotonic() + OPEN_WITHIN_S
    while True:
        try:
            return os.open(path, os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:
            if error.errno != errno.ENXIO or time.monotonic() > deadline:
                os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK))  # if it opens the pipe just now, it finds the end
                raise ReaderGone from None
        time.sleep(OPEN_EVERY_S)


def _write(pipe: int, piece: bytes) -> None:
    rest = memoryview(piece)
    poll = select.poll()
    poll.register(pipe, select.POLLOUT)
    while rest:
        if not poll.poll(MAX_STALLED_S * 1000):
            raise ReaderGone
        try:
            rest = rest[os.write(pipe, rest) :]
        except BrokenPipeError:
            raise ReaderGone from None
        except BlockingIOError:  # another piece of the pipe's buffer was needed
            continue
