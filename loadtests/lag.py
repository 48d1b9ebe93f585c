"""Board lag as a reader sees it: a page is liked again and again, and its row read until it shows the like."""

import threading
import time
from dataclasses import dataclass, field
from typing import Self

import requests

from loadtests.instance import Instance

LIKE_EVERY_S = 0.5
READ_EVERY_S = 0.02
MAX_LAG_S = 30.0
STOP_WITHIN_S = 2.0


@dataclass
class Lags:
    """In milliseconds. One that took longer than `MAX_LAG_S` counts as that."""

    measured: list[float] = field(default_factory=list)
    failed: int = 0

    def percentile(self, share: float) -> float | None:
        ordered = sorted(self.measured)
        return ordered[min(int(len(ordered) * share), len(ordered) - 1)] if ordered else None


class LagProbe:
    """Measures from the start of the block to its end, in a thread of its own."""

    def __init__(self, instance: Instance, *, prefix: str, space: str) -> None:
        self._instance, self._prefix, self._space = instance, prefix, space
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lag", daemon=True)
        self.lags = Lags()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        """Wait for the last like, unless the run has failed: then nobody reads the figures."""
        self._stop.set()
        self._thread.join(MAX_LAG_S if error is None else STOP_WITHIN_S)

    def _run(self) -> None:
        number = 0
        while not self._stop.wait(LIKE_EVERY_S):
            number += 1
            try:
                self._measure(number)
            except (requests.RequestException, RuntimeError, ValueError, KeyError):
                self.lags.failed += 1

    def _measure(self, number: int) -> None:
        page = f"{self._prefix}-lag"
        liked = self._instance.call("PUT", f"/api/v1/pages/{page}/likes/{page}-{number}")["likes"]
        began = time.perf_counter()
        path = f"/api/v1/leaderboards/rank?scope=space:{self._space}&window=all&metric=likes&member={page}"
        while (took := time.perf_counter() - began) < MAX_LAG_S:
            answer = self._instance.send("GET", path)
            if answer.status_code == 200 and answer.json()["value"] >= liked:
                took = time.perf_counter() - began
                break
            time.sleep(READ_EVERY_S)
        self.lags.measured.append(took * 1000)
