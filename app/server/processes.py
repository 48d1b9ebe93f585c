"""The web server's processes: each listens on the same port, and is replaced if it dies."""

import asyncio
import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import structlog
import uvloop

from app.server import listening as ports
from app.server.connection import MAX_STALLED_S, Connection
from app.server.listening import BACKLOG, HANDSHAKE_S, CannotStart, PortInUse
from app.settings import socket_address
from tenants import hangups
from tenants.quick_exit import run_and_exit

if TYPE_CHECKING:
    from app.server.front import Front

STOP_WITHIN_S = 4.0
# A process that ended soon after its start may do so again: wait this long before its replacement starts.
RESPAWN_AFTER_S = 0.5
# Processes one after the other that ended before they were steady: then it is no accident.
MAX_FAILURES = 6
STEADY_AFTER_S = 5.0
STOPS = {signal.SIGINT, signal.SIGTERM}
# The signals that the parent waits for.
AWAITED = {*STOPS, signal.SIGCHLD, signal.SIGHUP}

log = structlog.get_logger()


def serve(load: Callable[[], "Front"], *, host: str, port: int, processes: int, drain_s: float = 0.0) -> None:
    """Run so many processes until a stop signal. `load` is called in each of them. `CannotStart` if none can start.

    SIGTERM lets them go on for `drain_s`; SIGINT does not, before or meanwhile.
    """
    ports.require_free(host, port)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # whoever started us may ignore it
    signal.pthread_sigmask(signal.SIG_BLOCK, AWAITED)
    fork = partial(_fork, load, host, port, drain_s)
    started_at = {fork(): time.monotonic() for _ in range(processes)}
    where = socket_address(host, port)
    log.info("serves the API", action="web.started", data={"address": where, "processes": processes})
    failures, is_drained = 0, False
    try:
        while (number := _next_signal()) == signal.SIGCHLD:
            for pid, status in _ended(started_at):
                is_steady = time.monotonic() - started_at.pop(pid) >= STEADY_AFTER_S
                failures = 0 if is_steady else failures + 1
                log.error("a web process ended", action="web.ended", data={"pid": pid, "status": status})
                if failures >= MAX_FAILURES:
                    raise CannotStart(f"The web processes end as soon as they start (the last one with {status})")
                time.sleep(0 if is_steady else RESPAWN_AFTER_S)
                started_at[fork()] = time.monotonic()
        is_drained = number == signal.SIGTERM
    finally:
        how = signal.SIGTERM if is_drained else signal.SIGINT
        _stop(started_at, how, within_s=STOP_WITHIN_S + 1 + (drain_s if is_drained else 0))


def _next_signal() -> int:
    while (number := signal.sigwait(AWAITED)) == signal.SIGHUP:
        hangups.say()
    return number


def _stop(running: Collection[int], how: signal.Signals, *, within_s: float) -> None:
    """Each ends by itself in time, or is killed."""
    for number, until_s in ((how, within_s), (signal.SIGKILL, 1.0)):
        _tell(running, number)
        deadline = time.monotonic() + until_s
        while running and time.monotonic() < deadline:
            ended = {pid for pid, _ in _ended(running)}
            running = [pid for pid in running if pid not in ended]
            if signal.sigtimedwait({signal.SIGINT}, 0.01):
                _tell(running, signal.SIGINT)


def _tell(running: Iterable[int], number: signal.Signals) -> None:
    for pid in running:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def listen(host: str, port: int, *, shares_port: bool) -> socket.socket:
    """A socket for `Connection`."""
    listening = ports.listen(host, port, shares_port=shares_port)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux: also for what the system has taken, and a client does not read
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(MAX_STALLED_S * 1000))
    return listening


async def serve_here(front: "Front", listening: socket.socket, stop: asyncio.Event) -> None:
    """On the running loop, until `stop` is set and everything is answered, or was not in time."""
    loop = asyncio.get_running_loop()
    site = front.start(loop)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, AWAITED)  # not before: a loop that does not run yet loses signals
    server = await loop.create_server(lambda: Connection(site), sock=listening, backlog=BACKLOG)
    await stop.wait()
    if site.is_draining:
        await _accept_the_last(listening)
    server.close()
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(site.stop(), STOP_WITHIN_S)


async def _accept_the_last(listening: socket.socket) -> None:
    """Return once everybody who has connected was accepted, and had the time to send a request."""
    ports.ignore_new(listening)
    await asyncio.sleep(HANDSHAKE_S)
    while ports.has_waiting(listening):  # noqa: ASYNC110  the kernel tells nobody
        await asyncio.sleep(HANDSHAKE_S)


def _fork(load: Callable[[], "Front"], host: str, port: int, drain_s: float) -> int:
    pid = os.fork()
    if pid == 0:
        run_and_exit(lambda: _run(load, host, port, drain_s))
    return pid


def _run(load: Callable[[], "Front"], host: str, port: int, drain_s: float) -> None:
    """In a process of its own."""
    front = load()
    try:
        listening = listen(host, port, shares_port=True)
    except PortInUse as error:  # by another program, since the parent looked
        raise SystemExit(str(error)) from None
    loop, stop = uvloop.new_event_loop(), asyncio.Event()
    asyncio.set_event_loop(loop)

    def drain() -> None:
        front.drain()
        loop.call_later(drain_s, stop.set)

    loop.add_signal_handler(signal.SIGINT, stop.set)
    loop.add_signal_handler(signal.SIGTERM, drain if drain_s else stop.set)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the parent logs it
    loop.run_until_complete(serve_here(front, listening, stop))


def _ended(running: Iterable[int]) -> Iterator[tuple[int, int]]:
    """The processes that ended, and with which status: each is asked for only once the one before was dealt with."""
    for pid in list(running):
        has_ended, status = os.waitpid(pid, os.WNOHANG)
        if has_ended:
            yield pid, os.waitstatus_to_exitcode(status)
