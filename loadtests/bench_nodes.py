"""Several nodes on the same servers: what a request costs a node, and whether nodes wait for each other's locks.

A node is a `plaudit web` of its own with one process. All get the same load for each node, so that a commit has as many
requests: what a request costs must not depend on how many nodes there are.
"""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Self

import psutil
import psycopg
import requests

from loadtests import generator, operations
from loadtests.dataset import QUICK
from loadtests.pools import Pool
from loadtests.service import ROOT, free_port, wait_until
from loadtests.steady import Sent, Steady
from loadtests.target import Target, running_target

NODES = (1, 2, 4)
PER_SECOND = 300
LOOK_EVERY_S = 0.01


@dataclass(frozen=True)
class Node:
    process: psutil.Process
    port: int

    def cpu_s(self) -> float:
        members = [self.process, *self.process.children(recursive=True)]
        return float(sum(times.user + times.system for times in (member.cpu_times() for member in members)))


def nodes(seconds: float) -> None:
    with running_target(QUICK) as target, ExitStack() as stack:
        running = [stack.enter_context(_node(target)) for _ in range(max(NODES))]
        _drive(target, running, 2)  # warm up
        print(f"Each node gets {PER_SECOND} requests/s: a third views, a third likes, a third reads of boards")
        for count in NODES:
            print(f"  {_nodes(count)}: {_measure(target, running[:count], seconds)}")
        print("As fast as they are answered: single views with ids, 32 connections in all")
        for count in NODES:
            print(f"  {_nodes(count)}: {_throughput(target, running[:count], seconds):,.0f}/s")


def _nodes(count: int) -> str:
    return f"{count} node{'s' if count > 1 else ' '}"


@contextmanager
def _node(target: Target) -> Iterator[Node]:
    port = free_port()
    command = [sys.executable, "-m", "app.cli", "--data-dir", str(target.service.data_dir), "web", "--port", str(port)]
    env = {**os.environ, "PLAUDIT_WEB_PROCESSES": "1", "PLAUDIT_PUBLIC_URL": target.service.url}
    process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: requests.get(f"http://127.0.0.1:{port}/health/ready", timeout=2).ok)
        yield Node(psutil.Process(process.pid), port)
    finally:
        process.terminate()
        process.wait(20)


def _measure(target: Target, running: list[Node], seconds: float) -> str:
    before = [node.cpu_s() for node in running]
    with LockWaits(target) as waits:
        sent = _drive(target, running, seconds)
    answered = [sum(answer.status < 400 for answer in each.answers) for each in sent]
    used = [node.cpu_s() - at_first for node, at_first in zip(running, before, strict=True)]
    target.wait_until_idle()
    per_request = 1e6 * sum(used) / max(1, sum(answered))
    return (
        f"{sum(answered) / seconds:,.0f} requests/s answered, {per_request:.0f} µs of a node's processor time each;"
        f" a connection waited for a lock in {waits.share:.1%} of {waits.looks} looks"
    )


def _drive(target: Target, running: list[Node], seconds: float) -> list[Sent]:
    with ExitStack() as stack:
        steady = []
        for node in running:
            target.measurement += 1
            steady.append(
                stack.enter_context(Steady(node.port, _mixed(target), per_second=PER_SECOND, seconds=seconds))
            )
        return [each.result() for each in steady]


def _throughput(target: Target, running: list[Node], seconds: float) -> float:
    connections = generator.CONNECTIONS // len(running)
    pools = [operations.views(target) for _ in running]
    with ThreadPoolExecutor(len(running)) as threads:
        samples = list(
            threads.map(
                lambda node, pool: generator.measure(node.port, pool, seconds=seconds, connections=connections),
                running,
                pools,
            )
        )
    target.wait_until_idle()
    return sum(sample.per_second for sample in samples)


def _mixed(target: Target) -> Pool:
    likes = operations.likes(target)
    kinds = (operations.views(target).requests, likes.requests, operations.top(target).requests)
    longest = max(map(len, kinds))
    mixed = [kind[place % len(kind)] for place in range(longest) for kind in kinds]
    return Pool(mixed, modulus=likes.modulus, stride=likes.stride, offset=likes.offset)


class LockWaits:
    """Looks, many times a second, whether a connection of the service waits for a lock."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.looks = self.waiting = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def share(self) -> float:
        return self.waiting / max(1, self.looks)

    def _run(self) -> None:
        connection: psycopg.Connection[Any]
        with self._target.owner() as connection:
            while not self._stop.is_set():
                found = connection.execute(_WAITING).fetchone()
                self.looks += 1
                self.waiting += found != (0,)
                time.sleep(LOOK_EVERY_S)


_WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND backend_type = 'client backend'"
