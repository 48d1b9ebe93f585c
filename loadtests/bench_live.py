"""Benchmarks of sockets: how long after a like's answer every client has it, a socket's memory, and slow readers."""

import time
from statistics import quantiles

import requests

from loadtests.service import Service, demo
from loadtests.watchers import Watcher, Watchers

CLIENTS = 1_000
BOARD = {"op": "subscribe", "scope": "tenant", "window": "7d", "metric": "likes"}


def live(seconds: float) -> None:
    """A thousand clients of one process, without and with a client that never reads."""
    with demo() as service:
        headers = {"Authorization": f"Bearer {service.token()}"}
        for number in range(100):
            body = {"space": "s", "title": "long " * 90, "url": f"/{number}"}
            requests.put(f"{service.url}/api/v1/pages/p{number}", json=body, headers=headers, timeout=10)
            requests.put(f"{service.url}/api/v1/pages/p{number}/likes/ann", headers=headers, timeout=10)
        time.sleep(2)  # until the boards are quiet
        before = memory(service)
        with Watchers() as watchers:
            for _ in range(CLIENTS):
                watchers.add(follow(service, headers))
            assert watchers.wait_for(1, within_s=30)
            cost = (memory(service) - before) / CLIENTS
            print(f"{CLIENTS} sockets on one process: {cost / 1024:.0f} kB each, {before / 2**20:.0f} MB before")
            frames = 1
            for name in ("all of them read", "one never reads"):
                non_reader = NonReader(service, headers) if name == "one never reads" else None
                waits: list[float] = []
                until = time.monotonic() + seconds
                while time.monotonic() < until:
                    if non_reader is not None:
                        non_reader.reconnect()
                    waits += after_a_like(service, headers, watchers, frames)
                    frames += 1
                ordered = quantiles(waits, n=100)
                print(
                    f"  {name:<18}{len(waits):>8,} frames   like's answer to frame: p50 {ordered[49] * 1000:.0f} ms"
                    f"   p99 {ordered[98] * 1000:.0f} ms   last {max(waits) * 1000:.0f} ms"
                )


class NonReader:
    """A client with a long board and a small buffer that never reads. It reconnects, since the server drops it."""

    def __init__(self, service: Service, headers: dict[str, str]) -> None:
        self._service = service
        self._headers = headers
        self._since = 0.0

    def reconnect(self) -> None:
        if time.monotonic() - self._since > 5:
            self._since = time.monotonic()
            self._watcher = follow(self._service, self._headers, buffer_bytes=4096, top=100)


def follow(
    service: Service, headers: dict[str, str], *, buffer_bytes: int | None = None, top: int | None = None
) -> Watcher:
    answer = service.post("/api/v1/live/tickets", headers=headers).json()
    port = int(service.ready["live_url"].rsplit(":", 1)[1])
    watcher = Watcher(port, f"/ws/leaderboards?ticket={answer['ticket']}", buffer_bytes=buffer_bytes)
    watcher.send(BOARD | ({"top": top} if top else {}))
    return watcher


def after_a_like(service: Service, headers: dict[str, str], watchers: Watchers, frames: int) -> list[float]:
    user = f"u{time.monotonic_ns()}"
    requests.put(f"{service.url}/api/v1/pages/p0/likes/{user}", headers=headers, timeout=10)
    answered = time.perf_counter()
    assert watchers.wait_for(frames + 1, within_s=30), "a client received no frame"
    return [max(0.0, watcher.received[frames][0] - answered) for watcher in watchers.all]


def memory(service: Service) -> int:
    """The memory that only the live process and its children use."""
    process = service.live_process()
    return sum(member.memory_full_info().uss for member in [process, *process.children(recursive=True)])
