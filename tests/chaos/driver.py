"""Sends the traffic: threads that each repeat a part of it, with a random generator of their own from the seed."""

import random
import threading
from collections.abc import Callable
from typing import Any

from tests.chaos.callers import Caller
from tests.chaos.history import Recorder
from tests.chaos.people import Credentials, Lives, Scores
from tests.chaos.quests import Pages, Quests
from tests.chaos.readers import BoardReader, SocketReader, StreamReader
from tests.chaos.traffic import Clients, Traffic
from tests.chaos.world import World

# How many threads of each part there are, and how long each pauses between its steps.
PARTS: tuple[tuple[Any, int, float], ...] = (
    (Traffic, 5, 0.2),
    (Scores, 1, 0.4),
    (Quests, 1, 0.6),
    (Pages, 1, 0.6),
    (Lives, 1, 0.6),
    (Credentials, 1, 0.4),
    (BoardReader, 2, 0.3),
)
JOIN_WITHIN_S = 60.0


class Driver:
    """All threads of a run."""

    def __init__(self, world: World, recorder: Recorder, live_ports: dict[str, int], seed: int) -> None:
        self.world, self.recorder = world, recorder
        self.clients = Clients()
        self._stopping = threading.Event()
        self._readers_stopping = threading.Event()
        self._traffic: list[Traffic] = []
        self._threads: list[threading.Thread] = []
        for part, threads, pause_s in PARTS:
            for number in range(threads):
                name = f"{part.__name__} {number}"
                more = (self.clients,) if part is Traffic else ()
                call = Caller(recorder, world.ports, by=name)
                one = part(world, call, random.Random(f"{name} {seed}"), *more)
                if part is Traffic:
                    self._traffic.append(one)
                self._threads.append(threading.Thread(target=self._repeat, args=[one.step, pause_s], name=name))
        self._readers: list[threading.Thread] = []
        for node, port in live_ports.items():
            for reader in (SocketReader, StreamReader):
                following = reader(world, recorder, node, port, self._readers_stopping)
                self._readers.append(
                    threading.Thread(target=following.run, name=f"{reader.__name__} {node}", daemon=True)
                )

    def start(self) -> None:
        for thread in (*self._threads, *self._readers):
            thread.start()

    def stop(self) -> None:
        """Send nothing more but what was not answered yet."""
        self._stopping.set()
        for thread in self._threads:
            thread.join(JOIN_WITHIN_S)
        for traffic in self._traffic:
            for _ in range(1000):
                if not traffic.flush():
                    break

    def stop_reading(self) -> None:
        self._readers_stopping.set()
        for thread in self._readers:
            thread.join(1)  # a stream waits for its next line

    def _repeat(self, step: Callable[[], None], pause_s: float) -> None:
        while not self._stopping.is_set():
            try:
                step()
            except Exception as error:  # noqa: BLE001  an answer of another form than it must have
                what = f"{threading.current_thread().name} stumbled over {type(error).__name__}: {error}"
                self.recorder.note("finding", rule="driver", what=what)
            self._stopping.wait(pause_s)
