"""Several nodes on the same servers: what a request costs, and whether nodes wait for each other's locks.

A node is a `plaudit web` of its own with one process. Four of them run. First each of one, two or all four gets the
same number of requests a second, fewer than the machine can answer: a request must cost the same, however many nodes
there are. They come some at once, so that a commit has as many of them whether or not their generator was late. Then
the same requests are spread over one, two or four. At last as many are sent as are answered. Only nodes that get
requests are counted, without what they cost when they get none.

Four nodes that are as busy are four times the work for the same processors, each of which then takes longer for
anything. So a process beside them does the same small work again and again, and the nodes' time is also compared with
what that takes at the moment (`Yardstick`).
"""

import json
import multiprocessing
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

from app.run.ports import reserve_port
from loadtests import generator, operations
from loadtests.dataset import QUICK
from loadtests.pools import UNIQUE, Pool
from loadtests.service import ROOT, wait_until
from loadtests.steady import Steady
from loadtests.target import Target, running_target

NODES = (1, 2, 4)
# To each node.
PER_SECOND = (240, 360)
# To all nodes together.
SPREAD_PER_SECOND = 480
AT_ONCE = 12
CONNECTIONS = 16
LOOK_EVERY_S = 0.01
WARM_UP_S = 5.0
YARDSTICK_EVERY_S = 0.02
TURNS = 4


@dataclass(frozen=True)
class Node:
    process: psutil.Process
    port: int

    def cpu_s(self) -> float:
        members = [self.process, *self.process.children(recursive=True)]
        return float(sum(times.user + times.system for times in (member.cpu_times() for member in members)))


def nodes(seconds: float) -> None:
    with running_target(QUICK) as target, Yardstick() as yardstick, ExitStack() as stack:
        running = [stack.enter_context(_node(target)) for _ in range(max(NODES))]
        _at_a_rate(target, running, WARM_UP_S, per_second=PER_SECOND[0])
        site = Site(target, running, yardstick)
        print(f"Views of pages by popularity, likes, board reads; {AT_ONCE} at once")
        for per_second in PER_SECOND:
            print(f"{per_second} requests/s to each node")
            _measure_all(site, partial(_at_a_rate, per_second=per_second), seconds)
        print(f"{PER_SECOND[0]} requests/s to each node, views of any page")
        _measure_all(site, partial(_at_a_rate, per_second=PER_SECOND[0], page=any_page), seconds)
        print(f"{SPREAD_PER_SECOND} requests/s, spread over the nodes")
        _measure_all(site, _spread, seconds)
        print(f"As many as are answered, over {CONNECTIONS} connections to each node, pages by popularity")
        _measure_all(site, _as_fast_as_possible, seconds)


def any_page(pages: int) -> str:
    return f"p{random.randrange(pages):06d}"


@contextmanager
def _node(target: Target) -> Iterator[Node]:
    port = reserve_port()
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


@dataclass
class Measured:
    """With so many nodes that get requests, of several turns together."""

    nodes: int
    seconds: float = 0.0
    answered: float = 0.0
    cpu_s: float = 0.0
    yards: int = 0
    yards_cpu_s: float = 0.0
    looks: int = 0
    waiting: int = 0
    workers_waiting: int = 0

    def cpu_us(self, idle: "Measured") -> float:
        """Of the nodes' processors, for a request."""
        idle_s = idle.cpu_s / idle.seconds / max(NODES) * self.nodes * self.seconds
        return 1e6 * (self.cpu_s - idle_s) / max(1.0, self.answered)

    def cpu_yards(self, idle: "Measured") -> float:
        """The same, in units of the yardstick at the same time."""
        return self.cpu_us(idle) * self.yards / self.yards_cpu_s

    def __str__(self) -> str:
        return (
            f"{self.nodes} node{'s' if self.nodes > 1 else ' '}: {self.answered / self.seconds:,.0f} requests/s;"
            f" a node waited for a lock in {self.waiting / max(1, self.looks):.1%} of {self.looks} looks,"
            f" a worker in {self.workers_waiting / max(1, self.looks):.1%}"
        )


@dataclass(frozen=True)
class Site:
    target: Target
    nodes: Sequence[Node]
    yardstick: "Yardstick"


def _measure_all(site: Site, drive: Drive, seconds: float) -> None:
    """In many short turns, up and down, since the machine is never quite the same."""
    measured = {count: Measured(count) for count in (0, *NODES)}
    for count in (*measured, *reversed(measured)) * TURNS:
        _measure(measured[count], site, drive, seconds / TURNS)
    idle, *others = measured.values()
    one = others[0]
    for each in others:
        cost = each.cpu_us(idle)
        print(
            f"  {each}; {cost:.0f} µs of the nodes' processors for a request, {cost / one.cpu_us(idle):.2f} of what it"
            f" is with one, {each.cpu_yards(idle) / one.cpu_yards(idle):.2f} by the yardstick"
        )
    print(f"  Four idle nodes take {idle.cpu_s / idle.seconds:.1%} of a processor")


def _measure(measured: Measured, site: Site, drive: Drive, seconds: float) -> None:
    target, asked = site.target, site.nodes[: measured.nodes]
    counted = asked or site.nodes
    before, yards_before = sum(node.cpu_s() for node in counted), site.yardstick.read()
    with LockWaits(target) as waits:
        measured.answered += drive(target, asked, seconds)
    measured.cpu_s += sum(node.cpu_s() for node in counted) - before
    yards, yards_cpu_s = site.yardstick.read()
    measured.yards += yards - yards_before[0]
    measured.yards_cpu_s += yards_cpu_s - yards_before[1]
    measured.seconds += seconds
    measured.looks += waits.looks
    measured.waiting += waits.waiting
    measured.workers_waiting += waits.workers_waiting
    target.wait_until_idle()


def _spread(target: Target, running: Sequence[Node], seconds: float) -> float:
    return _at_a_rate(target, running, seconds, per_second=SPREAD_PER_SECOND / max(1, len(running)))


def _at_a_rate(
    target: Target,
    running: Sequence[Node],
    seconds: float,
    *,
    per_second: float,
    page: Callable[[int], str] = operations.popular_page,
) -> float:
    if not running:
        time.sleep(seconds)
        return 0.0
    send = partial(Steady, per_second=per_second, seconds=seconds, at_once=AT_ONCE)
    with ExitStack() as stack:
        steady = [
            stack.enter_context(send(node.port, _mixed(target, place, page))) for place, node in enumerate(running)
        ]
        return sum(answer.status < 400 for each in steady for answer in each.result().answers)


def _as_fast_as_possible(target: Target, running: Sequence[Node], seconds: float) -> float:
    if not running:
        time.sleep(seconds)
        return 0.0
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


class Yardstick:
    """A process that does the same work many times a second: how long a processor takes for it at the moment."""

    def __init__(self) -> None:
        own = multiprocessing.get_context("spawn")
        self._units, self._cpu_s = own.Value("q", 0), own.Value("d", 0.0)
        self._process = own.Process(target=_do_yards, args=(self._units, self._cpu_s), daemon=True)

    def __enter__(self) -> Self:
        self._process.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._process.kill()
        self._process.join()

    def read(self) -> tuple[int, float]:
        """How often it was done so far, and in how many seconds of a processor."""
        return self._units.value, self._cpu_s.value


def _do_yards(units: Any, cpu_s: Any) -> None:
    document = [{"id": number, "title": f"page {number}", "views": number * 7} for number in range(300)]
    while True:
        began = time.process_time()
        json.loads(json.dumps(document))
        cpu_s.value += time.process_time() - began
        units.value += 1
        time.sleep(YARDSTICK_EVERY_S)


class LockWaits:
    """Looks, many times a second, whether a connection of the service waits for a lock."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.looks = self.waiting = self.workers_waiting = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        connection: psycopg.Connection[Any]
        with self._target.owner() as connection:
            while not self._stop.is_set():
                nodes, workers = connection.execute(_WAITING).fetchone() or (0, 0)
                self.looks += 1
                self.waiting += nodes > 0
                self.workers_waiting += workers > 0
                time.sleep(LOOK_EVERY_S)


_WAITING = """
    SELECT count(*) FILTER (WHERE query LIKE '%write_page_events%'),
           count(*) FILTER (WHERE query NOT LIKE '%write_page_events%')
    FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND backend_type = 'client backend'
"""
