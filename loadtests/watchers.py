"""Many websocket clients in one thread, on raw sockets: they measure the server's time, and hardly their own."""

import base64
import contextlib
import os
import selectors
import socket
import threading
import time
from collections.abc import Mapping
from typing import Self

import orjson


class Watcher:
    """One client: the messages it received, and when."""

    def __init__(self, port: int, path: str, *, buffer_bytes: int | None = None) -> None:
        self.sock = socket.socket()
        self.sock.settimeout(10)
        if buffer_bytes is not None:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
        self.sock.connect(("127.0.0.1", port))
        key = base64.b64encode(os.urandom(16)).decode()
        self.sock.sendall(
            f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        answer = b""
        while b"\r\n\r\n" not in answer:
            part = self.sock.recv(4096)
            assert part, answer
            answer += part
        head, _, self._bytes = answer.partition(b"\r\n\r\n")
        assert b" 101 " in head.split(b"\r\n")[0], answer
        self.received: list[tuple[float, bytes]] = []
        self.is_closed = False

    def send(self, message: Mapping[str, object], *, opcode: int = 0x81) -> None:
        self._send(orjson.dumps(message), opcode)

    def _send(self, data: bytes, opcode: int) -> None:
        size = bytes([0x80 | len(data)]) if len(data) < 126 else b"\xfe" + len(data).to_bytes(2)
        self.sock.sendall(bytes([opcode]) + size + b"\0\0\0\0" + data)  # a mask of zeros changes nothing

    def read(self) -> None:
        """Read what has arrived. Pings are answered, as any client does."""
        now = time.perf_counter()
        try:
            part = self.sock.recv(65536)
        except OSError:
            part = b""
        if not part:
            self.is_closed = True
            return
        self._bytes += part
        while (frame := self._frame()) is not None:
            opcode, data = frame
            if opcode == 1:
                self.received.append((now, data))
            elif opcode == 9:
                with contextlib.suppress(OSError):
                    self._send(data, 0x8A)

    def _frame(self) -> tuple[int, bytes] | None:
        if len(self._bytes) < 2:
            return None
        size, start = self._bytes[1], 2
        if size >= 126:
            start = 4 if size == 126 else 10
            if len(self._bytes) < start:
                return None
            size = int.from_bytes(self._bytes[2:start])
        if len(self._bytes) < start + size:
            return None
        opcode, data = self._bytes[0] & 15, self._bytes[start : start + size]
        self._bytes = self._bytes[start + size :]
        return opcode, data

    def messages(self) -> list[dict[str, object]]:
        return [orjson.loads(data) for _, data in self.received]


class Watchers:
    """Several clients, and the thread that reads for all of them until the end of the block."""

    def __init__(self) -> None:
        self.all: list[Watcher] = []
        self._selector = selectors.DefaultSelector()
        self._stopped = False
        self._thread = threading.Thread(target=self._read, daemon=True)

    def add(self, watcher: Watcher) -> None:
        self.all.append(watcher)
        self._selector.register(watcher.sock, selectors.EVENT_READ, watcher)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._stopped = True
        self._thread.join()
        for watcher in self.all:
            watcher.sock.close()
        self._selector.close()

    def _read(self) -> None:
        while not self._stopped:
            for key, _ in self._selector.select(0.1):
                key.data.read()
                if key.data.is_closed:
                    self._selector.unregister(key.fileobj)

    def wait_for(self, count: int, *, within_s: float) -> bool:
        """Wait until each has received this many messages."""
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            if all(len(watcher.received) >= count for watcher in self.all):
                return True
            time.sleep(0.005)
        return False
