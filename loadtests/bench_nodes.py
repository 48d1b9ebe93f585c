"""Several nodes on the same servers: what a request costs a node, and whether nodes wait for each other's locks.

A node is a `plaudit web` of its own with one process. First each gets the same rate, below what the machine can do, so
that a commit has as many requests however many nodes there are: what a request costs a node must not depend on the
others. Then all are sent as much as they answer.
"""

import os
import random
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import psutil
import psycopg
import requests

from loadtests import generator, operations
from loadtests.dataset import QUICK
from loadtests.pools import UNIQUE, Pool
from loadtests.service import ROOT, free_port, wait_until
from loadtests.steady import Steady
from loadtests.target import Target, running_target

NODES = (1, 2, 4)
PER_SECOND = 150
CONNECTIONS = 16
LOOK_EVERY_S = 0.01
WARM_UP_S = 3.0


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
        _at_a_rate(target, running, WARM_UP_S, any_page)
        for title, page in (("any page", any_page), ("pages by popularity", operations.popular_page)):
            print(f"{PER_SECOND} requests/s to each node, a third views of {title}, a third likes, a third board reads")
            for count in NODES:
                print(
                    f"  {_nodes(count)}: {_measure(target, running[:count], partial(_at_a_rate, page=page), seconds)}"
                )
        print(f"As many as are answered, over {CONNECTIONS} connections to each node, pages by popularity")
        for count in NODES:
            print(f"  {_nodes(count)}: {_measure(target, running[:count], _as_fast_as_possible, seconds)}")


def any_page(pages: int) -> str:
    return f"p{random.randrange(pages):06d}"


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


# Sends requests to nodes for some seconds; returns how many were answered.
Drive = Callable[[Target, Sequence[Node], float], float]


def _measure(target: Target, running: Sequence[Node], drive: Drive, seconds: float) -> str:
    before = [node.cpu_s() for node in running]
    with LockWaits(target) as waits:
        answered = drive(target, running, seconds)
    used = sum(node.cpu_s() - at_first for node, at_first in zip(running, before, strict=True))
    target.wait_until_idle()
    return (
        f"{answered / seconds:,.0f} requests/s, {1e6 * used / max(1.0, answered):.0f} µs of a node's processor each;"
        f" a connection waited for a lock in {waits.share:.1%} of {waits.looks} looks"
    )


def _at_a_rate(target: Target, running: Sequence[Node], seconds: float, page: Callable[[int], str]) -> float:
    with ExitStack() as stack:
        steady = [
            stack.enter_context(Steady(node.port, _mixed(target, place, page), per_second=PER_SECOND, seconds=seconds))
            for place, node in enumerate(running)
        ]
        return sum(answer.status < 400 for each in steady for answer in each.result().answers)


def _as_fast_as_possible(target: Target, running: Sequence[Node], seconds: float) -> float:
    pools = [_mixed(target, place, operations.popular_page) for place in range(len(running))]

    def measure(node: Node, pool: Pool) -> float:
        return generator.measure(node.port, pool, seconds=seconds, connections=CONNECTIONS).per_second

    with ThreadPoolExecutor(len(running)) as threads:
        return seconds * sum(threads.map(measure, running, pools))


def _mixed(target: Target, place: int, page: Callable[[int], str]) -> Pool:
    """Views of the pages that every node gets; likes of other pages than those of the nodes beside it at the moment."""
    target.measurement += 1
    likes, token, run = operations.likes(target), target.client_token(), uuid.uuid4().hex
    first = place * len(likes.requests) // max(NODES)
    liked = [*likes.requests[first:], *likes.requests[:first]]
    paths = [f"/api/v1/pages/{page(target.tenant.pages)}/views" for _ in range(len(liked))]
    viewed = [operations.send("POST", path, token, {"id": f"{run}-{UNIQUE}"}) for path in paths]
    read = operations.top(target).requests
    mixed = [kind[number % len(kind)] for number in range(len(liked)) for kind in (viewed, liked, read)]
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
