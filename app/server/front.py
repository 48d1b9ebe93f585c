"""Who answers a request: the event loop what is in memory, and threads everything else.

The busiest calls are answered on the loop (`app.http.fast_lane`): a read whose answer is kept, at once; a read that
asks Redis together with others, and a single write after the commit that it shares, without a thread that waits for it.
On the loop nothing waits: what would have to (`tenants.waiting`) is passed to a thread, which calls the WSGI
application as any WSGI server does.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http import HTTPStatus
from typing import Any

import structlog

from analytics.boards import reading
from analytics.boards.ranks import RankQuestion
from analytics.ingest.loop_commit import LoopCommit
from analytics.ingest.loop_writes import commit_claims_on_loop, commit_on_loop
from app.http import edge, request_counts
from app.http.answer_cache import Answer
from app.http.auth import WRITTEN
from app.http.fast_answer import FastAnswer
from app.http.fast_calls import (
    BoardQuestion,
    FastCall,
    FastRead,
    FastWrite,
    Unknown,
    UnknownCaller,
    UnknownPage,
)
from app.http.fast_lane import FastLane, PendingWrite
from app.http.fast_writes import UPDATE
from app.http.gathered import MAX_TOGETHER, Gathered
from app.http.services import Services
from app.machine import fit_in_memory
from app.server import open_files, wsgi_calls
from app.server.answers import head_of, overloaded
from app.server.door import Door, QueueDoor, Ticket
from app.server.requests import Request
from app.server.site import Site
from tenants import liveness, waiting
from tenants.loop_connection import LoopConnection

MAX_CONNECTIONS = 10_000
# Open connections may take this part of the memory, each at its worst: a long head that is read, an answer that is not.
MEMORY_SHARE, CONNECTION_BYTES = 8, 128 * 1024
# Of the files that a process may have open, for everything but connections.
RESERVED_FILES = 256
# One of so many threads may wait for a long body of the same tenant; see `Site`.
SHARE_OF_SLOW_BODIES = 4
# Longer or packed bodies are not read on the loop: that would take too long for the others.
MAX_SHORT_BYTES = 2 * 1024
# In one commit: prepared and answered on the loop without delaying others for long. A claim takes longer.
MAX_EVENTS = 256
MAX_CLAIMS = 64
# That wait to be looked up; more are left to threads.
MAX_LOOKUPS = 1_024

log = structlog.get_logger()


class Front:
    def __init__(self, app: Any, services: Services) -> None:
        """`app`: the Flask application, with the fast lane around it."""
        self._app = app
        self._lane: FastLane = app.wsgi_app
        self._waker = services.waker
        self._draining = services.draining
        # Started with the first requests, so after a fork.
        self._max_threads = services.settings.all_web_threads
        self._processes = services.settings.web_processes
        self._threads = ThreadPoolExecutor(self._max_threads, thread_name_prefix="web")
        self._door = Door(working=services.settings.web_threads, threads=self._max_threads)
        self._event_door = QueueDoor(together=MAX_EVENTS)
        self._claim_door = QueueDoor(together=MAX_CLAIMS)
        self._read_door = QueueDoor(together=MAX_TOGETHER)
        self._ranks = ThreadPoolExecutor(1, thread_name_prefix="ranks")
        self._reads = Gathered("gathered-reads", self._lane.reads.answer_together, max_waiting=MAX_CONNECTIONS)
        self._lookups = Gathered("lookups", self._lane.learn, max_waiting=MAX_LOOKUPS)
        self._always = b"".join(f"{name}: {value}\r\n".encode() for name, value in self._lane.always)
        self._resolved: deque[tuple[Callable[[Any], None], Any]] = deque()
        self._is_woken = False

    def start(self, loop: asyncio.AbstractEventLoop) -> Site:
        """Answer requests from now on, on this loop, in this thread."""
        liveness.start()
        self._loop = loop
        write = partial(commit_on_loop, connection=LoopConnection(loop))
        self._events = LoopCommit(loop, write, max_requests=MAX_EVENTS, after=self._waker)
        pay = partial(commit_claims_on_loop, connection=LoopConnection(loop), read_ranks=self._read_ranks)
        self._claims = LoopCommit(loop, pay, max_requests=MAX_CLAIMS, after=self._waker)
        waiting.forbid_in_this_thread()
        self._site = Site(
            loop,
            self.handle,
            max_slow_bodies=max(1, self._max_threads // SHARE_OF_SLOW_BODIES),
            max_connections=_max_connections(self._processes),
        )
        return self._site

    def drain(self) -> None:
        """Say that this process is not ready, and close each connection after its next answer."""
        self._draining.set()
        self._site.is_draining = True

    def handle(self, request: Request) -> None:
        """On the loop."""
        started, environ = time.perf_counter(), request.environ
        edge.shorten_target(environ)
        call = self._lane.find_plain(environ)
        if call is None or (isinstance(call, FastWrite) and not _is_short(request)):
            self._answer_in_thread(request)
        else:
            self._answer(request, call, started)

    def _answer(self, request: Request, call: FastCall, started: float, learned: tuple[Unknown, ...] = ()) -> None:
        """`learned`: what was looked up for this request; what is still unknown then does not exist."""
        if isinstance(call, FastRead):
            unknown = self._read(request, call, started)
        else:
            unknown = self._write(request, call, started)
        if unknown is not None:
            again = partial(self._answer_again, request, call, started, (*learned, unknown))
            if unknown in learned or not self._lookups.submit(unknown, partial(self._resolve, again)):
                self._answer_in_thread(request)

    def _answer_again(
        self, request: Request, call: FastCall, started: float, learned: tuple[Unknown, ...], _: None
    ) -> None:
        """After a look-up. Whatever fails, a thread answers."""
        try:
            self._answer(request, call, started, learned)
        except Exception:
            log.exception("a request could not be answered on the loop", action="request.failed")
            self._answer_in_thread(request)

    def _read(self, request: Request, call: FastRead, started: float) -> Unknown | None:
        """Returns what must be looked up first."""
        answer = self._lane.read(call, request.environ)
        if isinstance(answer, UnknownCaller | UnknownPage):
            return answer
        if isinstance(answer, BoardQuestion):
            self._ask(request, call, answer, started)
        else:
            self._send(request, call, answer, started)
        return None

    def _ask(self, request: Request, call: FastRead, question: BoardQuestion, started: float) -> None:
        caller = question.asker
        if not self._read_door.is_open_to(lambda: caller):
            self._lane.end_read(question, request.environ, None)
            self._refuse(request)
            return
        answered = partial(self._end_read, request, call, question, started, self._read_door.enter(caller))
        if not self._reads.submit(question, partial(self._resolve, answered)):
            answered(None)

    def _end_read(
        self,
        request: Request,
        call: FastRead,
        question: BoardQuestion,
        started: float,
        entered_at: float,
        answer: Answer | None,
    ) -> None:
        self._read_door.leave(question.asker, entered_at)
        self._send(request, call, self._lane.end_read(question, request.environ, answer), started)

    def _write(self, request: Request, call: FastWrite, started: float) -> UnknownCaller | None:
        """Returns who must be looked up first."""
        door, group = (self._claim_door, self._claims) if call.route == UPDATE else (self._event_door, self._events)
        if not door.is_open_to(partial(self._lane.caller_of, request.environ)):
            self._refuse(request)
            return None
        request.environ["HTTP_X_REQUEST_ID"] = edge.request_id_of(request.environ.get("HTTP_X_REQUEST_ID"))
        pending = self._lane.begin_write(call, request.environ)
        if isinstance(pending, UnknownCaller):
            return pending
        if pending is None:
            self._answer_in_thread(request)
            return None
        entered_at = door.enter(pending.caller)
        group.submit(pending.request, partial(self._end_write, request, pending, started, door, entered_at))
        return None

    def _end_write(
        self,
        request: Request,
        pending: PendingWrite,
        started: float,
        door: QueueDoor,
        entered_at: float,
        is_decided: bool,
    ) -> None:
        door.leave(pending.caller, entered_at)
        answer = self._lane.end_write(pending, request.environ, is_decided=is_decided)
        self._send(request, pending.call, answer, started)

    def _send(self, request: Request, call: FastCall, answer: FastAnswer | None, started: float) -> None:
        """None: a thread must answer."""
        if answer is None:
            self._answer_in_thread(request)
            return
        request_id = edge.request_id_of(request.environ.get("HTTP_X_REQUEST_ID"))
        head = b"%b%bX-Request-Id: %b\r\n" % (head_bytes(answer), self._always, request_id.encode())
        request.answer(head, answer.body)
        self._lane.record(call, answer.code, time.perf_counter() - started, request_id, request.environ)

    def _read_ranks(self, questions: Sequence[RankQuestion]) -> "asyncio.Future[Sequence[Sequence[int | None] | None]]":
        """By a thread, which may wait for Redis."""
        return self._loop.run_in_executor(self._ranks, reading.known_ranks_together, questions)

    def _resolve(self, call: Callable[[Any], None], result: Any) -> None:
        """From another thread. The loop is woken once for all that are answered together."""
        self._resolved.append((call, result))
        if not self._is_woken:
            self._is_woken = True
            self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._is_woken = False  # before the first is taken: who comes later wakes the loop again
        while self._resolved:
            call, result = self._resolved.popleft()
            try:
                call(result)
            except Exception:  # the others must be answered
                log.exception("a read could not be answered", action="request.failed")

    def _answer_in_thread(self, request: Request) -> None:
        """Refuse it if there are too many, unless it was decided already."""
        environ = request.environ
        if environ["PATH_INFO"].startswith(edge.FOR_OPERATORS):
            ticket = self._door.enter_for_operators()
        else:
            ticket = self._door.enter(self._lane.caller_of(environ), always=WRITTEN in environ)
        if ticket is None:
            self._refuse(request)
            return
        try:
            self._threads.submit(self._work, request, ticket)
        except RuntimeError:  # no thread can be started, but another may already have taken it from the queue
            if self._door.withdraw(ticket):
                self._refuse(request)

    def _work(self, request: Request, ticket: Ticket) -> None:
        """In a thread."""
        if not self._door.begin(ticket):
            return
        try:
            wsgi_calls.answer(self._app, request, ticket.at)
        finally:
            self._lane.leave(request.environ)
            self._door.leave(ticket)

    def _refuse(self, request: Request) -> None:
        self._lane.leave(request.environ)
        request.answer(*overloaded())
        request_counts.add("(any)", "(none)", HTTPStatus.SERVICE_UNAVAILABLE, 0.0)


def head_bytes(answer: FastAnswer) -> bytes:
    if answer.head is None:
        answer.head = head_of(answer.status, answer.headers)
    return answer.head


def _max_connections(processes: int) -> int:
    """As many as files and memory allow each of the web processes."""
    in_memory = fit_in_memory(CONNECTION_BYTES, share=MEMORY_SHARE, processes=processes)
    return open_files.allow(min(MAX_CONNECTIONS, in_memory), reserved=RESERVED_FILES)


def _is_short(request: Request) -> bool:
    """Whether address and body can be read in no time."""
    environ = request.environ
    if edge.TOO_LONG in environ or "HTTP_CONTENT_ENCODING" in environ or "HTTP_TRANSFER_ENCODING" in environ:
        return False
    return request.body.is_complete and (request.body.length or 0) <= MAX_SHORT_BYTES
