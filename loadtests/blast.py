"""A small, fast load generator: raw keep-alive sockets in a few processes, so that it measures the server."""

import multiprocessing
import selectors
import socket
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

MAX_SECONDS = 60.0

# Called with (process, connection, number of the request) → the request's bytes.
RequestMaker = Callable[[int, int, int], bytes]


@dataclass(frozen=True)
class Result:
    seconds: float
    statuses: dict[int, int]
    p50_ms: float
    p99_ms: float

    @property
    def per_second(self) -> float:
        return sum(self.statuses.values()) / self.seconds

    def __str__(self) -> str:
        others = {status: n for status, n in self.statuses.items() if status >= 400}
        trouble = f"  errors {others}" if others else ""
        return f"{self.per_second:>9,.0f}/s   p50 {self.p50_ms:6.1f} ms   p99 {self.p99_ms:6.1f} ms{trouble}"


def request(method: str, path: str, *, headers: dict[str, str] | None = None, body: bytes = b"") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", *(f"{k}: {v}" for k, v in (headers or {}).items())]
    if body or method in {"POST", "PUT", "PATCH"}:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


def blast(port: int, make: RequestMaker, *, connections: int = 64, processes: int = 1, seconds: float = 5.0) -> Result:
    """Keep `connections` requests in flight to 127.0.0.1:port for `seconds`."""
    seconds = min(seconds, MAX_SECONDS)
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    share = connections // processes

    def run(process: int) -> None:
        results.put(_drive(port, make, process, share, seconds))

    children = [context.Process(target=run, args=(number,)) for number in range(processes)]
    for child in children:
        child.start()
    parts = [results.get(timeout=seconds + 30) for _ in children]
    for child in children:
        child.join()
    statuses: Counter[int] = Counter()
    latencies: list[float] = []
    for counted, measured in parts:
        statuses.update(counted)
        latencies += measured
    latencies.sort()
    return Result(seconds, dict(statuses), _percentile(latencies, 0.5), _percentile(latencies, 0.99))


class Connection:
    """A keep-alive connection with one request in flight."""

    def __init__(self, port: int, number: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.number = number
        self.sent = 0
        self.sent_at = 0.0
        self.received = b""
        self.body = b""

    def take_answer(self) -> int | None:
        """The status, once the whole answer has been received; its body is then in `body`."""
        head, separator, body = self.received.partition(b"\r\n\r\n")
        if not separator:
            return None
        lower = head.lower()
        at = lower.find(b"content-length:")
        length = int(lower[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
        if len(body) < length:
            return None
        self.body, self.received = body[:length], body[length:]
        return int(head[9:12])


def _drive(
    port: int, make: RequestMaker, process: int, connections: int, seconds: float
) -> tuple[dict[int, int], list[float]]:
    selector = selectors.DefaultSelector()
    statuses: Counter[int] = Counter()
    latencies: list[float] = []

    def send(connection: Connection) -> None:
        data = make(process, connection.number, connection.sent)
        connection.sent += 1
        connection.sent_at = time.perf_counter()
        connection.socket.sendall(data)

    open_connections = [Connection(port, number) for number in range(connections)]
    for connection in open_connections:
        selector.register(connection.socket, selectors.EVENT_READ, connection)
        send(connection)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for key, _ in selector.select(0.5):
            connection = key.data
            data = connection.socket.recv(65536)
            if not data:
                raise ConnectionError("the server closed a connection")
            connection.received += data
            status = connection.take_answer()
            if status is not None:
                latencies.append(time.perf_counter() - connection.sent_at)
                statuses[status] += 1
                send(connection)
    for connection in open_connections:
        connection.socket.close()
    return dict(statuses), latencies


def _percentile(ordered: list[float], share: float) -> float:
    return ordered[int(len(ordered) * share)] * 1000 if ordered else float("nan")
