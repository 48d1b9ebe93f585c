"""`plaudit up`: the whole service in one terminal.

One thread does everything: it starts the children (a child ends with the thread that started it), reads their lines,
restarts what dies and stops all of them at the end. Printing has a thread of its own, so that a terminal or pipe that
nobody reads blocks nothing else; and so has asking the local servers whether they still answer (`probes`). One that
does not is stopped, and so restarted.
"""

import contextlib
import errno
import os
import queue
import re
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import IO

from app.run import environment
from app.run.data_folder import LocalServersError
from app.run.forked import ForkedProcess
from app.run.local_servers import LocalServers, Server
from app.run.probes import Probes
from app.run.stopping import stopping
from app.server import listening
from app.server.listening import PortInUse

STOP_WITHIN_S = 9.0
APP_STOP_WITHIN_S = 5.0
# For a server that does not answer: it will hardly end politely.
LOST_STOP_WITHIN_S = 3.0
READY_WITHIN_S = 90.0
# How often a condition is looked at that is waited for.
POLL_S = 0.02
STOPPING_POLL_S = 0.05
FIRST_RESTART_DELAY_S = 0.05
MAX_RESTART_DELAY_S = 5.0
# The restart delay of a child that ran this long is reset.
STEADY_AFTER_S = 10.0

Process = subprocess.Popen[bytes] | ForkedProcess
Start = Callable[[], Process]


class UpError(Exception):
    """`plaudit up` cannot continue; the message says why and what to do."""


@dataclass(eq=False)
class Child:
    name: str
    start: Start
    server: Server | None = None
    noise: "re.Pattern[str]" = re.compile(r"(?!)")
    # How long it goes on after SIGTERM. SIGINT ends it at once.
    drain_s: float = 0.0
    first_signal: signal.Signals = signal.SIGTERM
    process: Process | None = None
    started_at: float = 0.0
    restart_at: float | None = None
    restart_in_s: float = FIRST_RESTART_DELAY_S
    # The steps by which one that does not answer is stopped.
    ending: Iterator[signal.Signals] | None = None

    @property
    def is_alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def stop_signals(self) -> tuple[signal.Signals, ...]:
        return (self.first_signal, signal.SIGKILL) if self.server is None else self.server.stop_signals

    def skip_drain(self) -> None:
        if self.drain_s:
            self.first_signal, self.drain_s = signal.SIGINT, 0.0

    def stopping(self, within_s: float, is_urgent: Callable[[], bool] = lambda: False) -> Iterator[signal.Signals]:
        if self.process is None:
            return iter(())
        if self.server is not None:
            return self.server.stopping(self.process, within_s=within_s, is_urgent=is_urgent)
        return stopping(self.process, *self.stop_signals, within_s=within_s, is_urgent=is_urgent)


@dataclass
class Supervisor:
    env: dict[str, str]
    out: "Printer"
    children: list[Child] = field(default_factory=list)
    _probes: Probes = field(default_factory=Probes)
    _selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)
    _stop_signals: list[int] = field(default_factory=list)
    _partial: dict[int, bytes] = field(default_factory=dict)

    @contextlib.contextmanager
    def signals(self) -> Iterator[None]:
        """Ctrl-C and SIGTERM request a stop; a second one kills what has not stopped yet."""
        awake, waker = os.pipe()
        os.set_blocking(waker, False)
        previous_fd = signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        handled = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        previous = {number: signal.signal(number, self._on_signal) for number in handled}
        # A child that has ended need not have closed its output: its own children may have it open still.
        previous[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda *_: None)
        self._selector.register(awake, selectors.EVENT_READ, None)
        try:
            yield
        finally:
            signal.set_wakeup_fd(previous_fd)
            for number, handler in previous.items():
                signal.signal(number, handler)
            self._selector.unregister(awake)
            os.close(awake)
            os.close(waker)

    def add_server(self, server: Server) -> Child:
        def start() -> Process:
            return server.start(stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

        if server.question is not None:
            self._probes.add(server.name, server.question)
        return self._add(Child(server.name, start, server, re.compile(server.noise)))

    def add_fork(
        self, name: str, module: str, *arguments: str, env: dict[str, str] | None = None, drain_s: float = 0.0
    ) -> Child:
        """One of our own processes, with the libraries that are loaded here."""
        start = partial(ForkedProcess, module, arguments, {**self.env, **(env or {})})
        return self._add(Child(name, start, drain_s=drain_s))

    def add_command(self, name: str, *arguments: str, env: dict[str, str] | None = None, drain_s: float = 0.0) -> Child:
        """One of our own processes that loads its libraries itself."""
        command = [sys.executable, "-m", "app.cli", *arguments]
        child_env = environment.for_child(self.env, **(env or {}))

        def start() -> Process:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=child_env,
            )

        return self._add(Child(name, start, drain_s=drain_s))

    def wait_for(
        self,
        condition: Callable[[], bool],
        *,
        within_s: float | None = None,
        why_not: Callable[[], str] = lambda: "",
    ) -> bool:
        """Supervise until the condition is true. False: a stop was requested first."""
        within_s = READY_WITHIN_S if within_s is None else within_s
        if not self.wait_at_most(within_s, condition) and not self.is_stopping:
            reason = why_not()
            raise UpError(f"Not ready after {within_s:.0f} s{f': {reason}' if reason else '; the lines above say why'}")
        return not self.is_stopping

    def wait_at_most(self, within_s: float, condition: Callable[[], bool]) -> bool:
        """Supervise until the condition is true. False: the time was over, or a stop was requested, first."""
        deadline = time.monotonic() + within_s
        while not self.is_stopping and time.monotonic() <= deadline:
            if condition():
                return True
            self.run_once(POLL_S)
        return False

    @property
    def is_stopping(self) -> bool:
        return bool(self._stop_signals)

    def run(self) -> None:
        """Supervise until a stop is requested."""
        while not self._stop_signals:
            self.run_once(0.5)

    def run_once(self, wait_s: float) -> None:
        """Read the children's lines, end those that do not answer, and restart those that are due."""
        now = time.monotonic()
        due = [child.restart_at - now for child in self.children if child.restart_at is not None]
        self._read_lines(max(0.0, min([wait_s, *due])))
        for child in self.children:
            self._end_if_lost(child)
            self._restart_if_dead(child)

    def stop_all(self) -> None:
        """Stop our own processes first, then the servers they use. Only SIGTERM drains: at Ctrl-C nobody waits."""
        ours = [child for child in self.children if child.server is None]
        servers = [child for child in self.children if child.server is not None]
        if self._stop_signals[:1] != [signal.SIGTERM]:
            for child in ours:
                child.skip_drain()
        drain_s = max((child.drain_s for child in ours), default=0.0)
        deadline = time.monotonic() + drain_s + STOP_WITHIN_S
        self._stop(ours, within_s=drain_s + APP_STOP_WITHIN_S)
        self._stop(servers, within_s=deadline - time.monotonic())

    def _add(self, child: Child) -> Child:
        self.children.append(child)
        self._start(child)
        return child

    def _start(self, child: Child) -> None:
        child.process = child.start()
        child.started_at = time.monotonic()
        child.restart_at = None
        self._probes.forget(child.name)
        assert child.process.stdout is not None  # noqa: S101
        os.set_blocking(child.process.stdout.fileno(), False)
        self._selector.register(child.process.stdout, selectors.EVENT_READ, child)

    def _restart_if_dead(self, child: Child) -> None:
        if child.restart_at is not None:
            if time.monotonic() >= child.restart_at and not self._stop_signals:
                self._start(child)
        elif not child.is_alive:
            assert child.process is not None  # noqa: S101
            self._drain(child)
            if time.monotonic() - child.started_at > STEADY_AFTER_S:
                child.restart_in_s = FIRST_RESTART_DELAY_S
            child.restart_at = time.monotonic() + child.restart_in_s
            status = child.process.returncode
            if status is not None and not self._stop_signals:
                how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
                self.out.line(child.name, f"{how}; restarting it in {child.restart_in_s:g} s")
            child.restart_in_s = min(child.restart_in_s * 2, MAX_RESTART_DELAY_S)

    def _end_if_lost(self, child: Child) -> None:
        if child.ending is not None:
            if next(child.ending, None) is None:
                child.ending = None
        elif self._probes.is_lost(child.name) and child.is_alive:
            self.out.line(child.name, "does not answer; ending it, to start it again")
            child.ending = child.stopping(LOST_STOP_WITHIN_S)

    def _stop(self, children: list[Child], *, within_s: float) -> None:
        steps = {}
        for child in children:
            child.restart_at = None
            steps[child] = child.stopping(within_s, lambda: len(self._stop_signals) > 1)
        said: dict[Child, signal.Signals] = {}
        while steps:
            for child in list(steps):
                number = next(steps[child], None)
                if number is None:
                    del steps[child]
                    self._drain(child)
                elif number != said.get(child, child.stop_signals[0]):
                    said[child] = number
                    self.out.line(child.name, f"did not stop in time; sending it {number.name}")
            self._read_lines(STOPPING_POLL_S if steps else 0)

    def _read_lines(self, wait_s: float) -> None:
        for key, _ in self._selector.select(wait_s):
            if key.data is None:
                os.read(key.fd, 64)
            else:
                self._read(key.fd, key.data)

    def _read(self, fd: int, child: Child) -> bool:
        try:
            data = os.read(fd, 65536)
        except BlockingIOError:
            return False
        *lines, rest = (self._partial.pop(fd, b"") + data).split(b"\n")
        for line in lines if data else [*lines, rest]:
            text = line.decode(errors="replace").rstrip()
            if text and not child.noise.search(text):
                self.out.line(child.name, text)
        if data:
            self._partial[fd] = rest
            return True
        with contextlib.suppress(KeyError):
            self._selector.unregister(fd)
        return False

    def _drain(self, child: Child) -> None:
        """Read the last lines of a child that has ended. Its children may still have the pipe open, so never wait."""
        if child.process is None or child.process.stdout is None or child.process.stdout.closed:
            return
        fd = child.process.stdout.fileno()
        while self._read(fd, child):
            pass
        with contextlib.suppress(KeyError):
            self._selector.unregister(fd)
        self._partial.pop(fd, None)
        child.process.stdout.close()

    def _on_signal(self, number: int, _frame: object) -> None:
        self._stop_signals.append(number)


class Printer:
    """Prints the lines of all children, prefixed and coloured. Lines that nobody reads are dropped without waiting."""

    COLOURS = ("36", "32", "35", "34", "33", "96", "92")

    def __init__(self, stream: IO[str], *, colours: bool) -> None:
        self._stream = stream
        self._colours = colours
        self._waiting: queue.Queue[str | None] = queue.Queue(maxsize=10_000)
        self._seen: dict[str, str] = {}
        self._last_line_at = time.monotonic()
        self._thread = threading.Thread(target=self._print, name="printer", daemon=True)
        self._thread.start()

    def has_been_quiet_for(self, seconds: float) -> bool:
        """Whether no child has written a line for this time."""
        return time.monotonic() - self._last_line_at >= seconds

    def line(self, name: str, text: str) -> None:
        self._last_line_at = time.monotonic()
        prefix = f"{name:<9}|"
        if self._colours:
            colour = self._seen.setdefault(name, self.COLOURS[len(self._seen) % len(self.COLOURS)])
            prefix = f"\x1b[{colour}m{prefix}\x1b[0m"
        self.plain(f"{prefix} {text}")

    def plain(self, text: str) -> None:
        with contextlib.suppress(queue.Full):
            self._waiting.put_nowait(f"{text}\n")

    def close(self) -> None:
        with contextlib.suppress(queue.Full):
            self._waiting.put_nowait(None)
        self._thread.join(1)

    def _print(self) -> None:
        # Not through the stream's buffer: a write blocked by a full pipe would have its lock when Python exits.
        while (text := self._waiting.get()) is not None:
            data = text.encode(errors="replace")
            try:
                while data:
                    data = data[os.write(self._stream.fileno(), data) :]
            except ValueError:  # the stream is closed; the service continues
                return
            except OSError as error:
                if error.errno in {errno.EPIPE, errno.EBADF}:  # so has the reader
                    return
                # The line is lost; on a disk that was full, the next one may not be.


def start_servers(
    supervisor: Supervisor, servers: LocalServers, *, with_database: bool, with_redis: bool
) -> Callable[[], bool]:
    """Start the local servers that are wanted. Returns the condition to wait for: whether they are up."""
    children = []
    if with_database:
        children.append(supervisor.add_server(servers.postgres()))
    if with_redis:
        children.append(supervisor.add_server(servers.valkey()))

    def are_up() -> bool:
        dead = [child.name for child in children if not child.is_alive and child.restart_in_s >= MAX_RESTART_DELAY_S]
        if dead:
            raise LocalServersError(f"The local {dead[0]} keeps stopping; the lines above say why")
        return servers.are_up(database=with_database, redis=with_redis)

    return are_up


def check_port(host: str, port: int, how_to_change: str) -> None:
    try:
        listening.require_free(host, port)
    except PortInUse as error:
        raise UpError(
            f"Port {port} is taken: choose another with {how_to_change}" if error.is_taken else str(error)
        ) from None


def port_is_free(host: str, port: int) -> bool:
    try:
        listening.listen(host, port, shares_port=False).close()
    except PortInUse:
        return False
    return True
