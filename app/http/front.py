"""The web server's side of the application: an event loop for what is in memory, and threads for everything else.

The server (granian, by its interface RSGI) calls `Front` on the event loop of a process. The busiest calls are answered
there (`app.http.fast_lane`): a read whose answer is kept, at once; a single write, after the group commit that it
shares, while it occupies no thread. On the loop nothing waits: what would have to (`tenants.waiting`) is passed to a
thread, which calls the WSGI application as any WSGI server does.

Why not a thread for each request: of what a durable view cost, two thirds were threads that wait, are woken and take
turns (docs/performance.md).
"""

import asyncio
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from io import BytesIO
from typing import Any, Protocol, TypeVar

import structlog
from granian.rsgi import ProtocolClosed, ProtocolError  # type: ignore[attr-defined]

from analytics.ingest.loop_commit import LoopCommit
from analytics.ingest.writes import WriteRequest, commit_on_loop, commit_together
from app.http import edge
from app.http.answer_cache import Answer
from app.http.body import MAX_BODY_BYTES, has_body
from app.http.fast_calls import BoardQuestion, FastCall, FastRead, FastWrite
from app.http.fast_lane import SPECIAL_HEADERS, FastLane
from app.http.gathered_reads import GatheredReads
from app.http.pipes import send_through_pipe
from app.http.services import Services
from tenants import waiting
from tenants.errors import Unavailable
from tenants.loop_connection import LoopConnection

Environ = dict[str, Any]
Headers = list[tuple[str, str]]

NEVER_A_BODY = {204, 304}
# A longer body is received when it is read: by who may wait, and after the caller is known.
MAX_EARLY_BYTES = 64 * 1024
MAX_RECEIVE_S = 20.0
# One of so many threads may wait for such a body.
SHARE_OF_SLOW_BODIES = 4
# Longer or packed bodies are not read on the loop: that would take too long for the others.
MAX_SHORT_BYTES = 2 * 1024
# So many are prepared on the loop without delaying others for long; claims, each of which takes longer, in a thread.
MAX_PER_COMMIT = 256

log = structlog.get_logger()

Received = TypeVar("Received")


class TooManySlowBodies(Unavailable):
    code = "overloaded"
    title = "Too many long bodies are being received"


class Scope(Protocol):
    """What the server says of a request."""

    http_version: str
    server: str
    client: str
    scheme: str
    method: str
    path: str
    query_string: str
    authority: str | None
    headers: Any


class Front:
    def __init__(self, app: Any, services: Services) -> None:
        """`app`: the Flask application, with the fast lane around it."""
        self._app = app
        self._lane: FastLane = app.wsgi_app
        self._after_commit = services.waker
        # Claims are committed by one thread; started with the first, so after a fork.
        self._cashier = ThreadPoolExecutor(1, thread_name_prefix="claims")
        threads = services.settings.all_web_threads
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="web")
        self._reads = GatheredReads(self._lane.reads.answer_together)
        self._slow_bodies = threading.BoundedSemaphore(max(1, threads // SHARE_OF_SLOW_BODIES))
        self._resolved: deque[tuple[asyncio.Future[Any], Any]] = deque()
        self._is_woken = False

    def __rsgi_init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        connection = LoopConnection(loop)
        commit = partial(commit_on_loop, connection=connection)
        self._events = LoopCommit(loop, commit, max_requests=MAX_PER_COMMIT, after=self._after_commit)
        self._claims = LoopCommit(loop, self._commit_claims, max_requests=MAX_PER_COMMIT, after=self._after_commit)
        waiting.forbid_in_this_thread()

    async def __rsgi__(self, scope: Scope, server: Any) -> None:
        started = time.perf_counter()
        call = self._find(scope)
        if isinstance(call, FastRead) and await self._read(call, scope, server, started):
            return
        environ = environ_of(scope)
        edge.shorten_target(environ)
        if has_body(environ):
            await self._add_body(environ, server)
        if isinstance(call, FastWrite) and _is_short(environ) and await self._write(call, environ, server, started):
            return
        await self._answer_in_thread(environ, server)

    def _find(self, scope: Scope) -> FastCall | None:
        """The call, if it may be answered here."""
        call = self._lane.find(scope.method, scope.path, scope.query_string)
        if call is not None:
            headers = scope.headers
            for name in SPECIAL_HEADERS:
                if name in headers:
                    return None
            if len(headers.get_all("authorization")) != 1:
                return None
        return call

    async def _read(self, call: FastRead, scope: Scope, server: Any, started: float) -> bool:
        """Answer a read; False if a thread must."""
        headers = scope.headers
        authorization, target = headers.get("authorization") or "", f"{scope.path}?{scope.query_string}"
        answer = await self._lane.read(call, authorization, target, headers.get("if-none-match"), self._ask)
        if answer is None:
            return False
        request_id = edge.request_id_of(headers.get("x-request-id"))
        server.response_bytes(answer.code, self._lane.headers_of(answer, request_id), answer.body)
        self._lane.record(
            call, answer.code, time.perf_counter() - started, headers.get("x-plaudit-demo"), request_id, authorization
        )
        return True

    async def _write(self, call: FastWrite, environ: Environ, server: Any, started: float) -> bool:
        """Answer a write; False if a thread must."""
        environ["HTTP_X_REQUEST_ID"] = request_id = edge.request_id_of(environ.get("HTTP_X_REQUEST_ID"))
        answer = await self._lane.write(call, environ, self._submit)
        if answer is None:
            return False
        server.response_bytes(answer.code, self._lane.headers_of(answer, request_id), answer.body)
        seconds, demo_secret = time.perf_counter() - started, environ.get(edge.DEMO_HEADER)
        self._lane.record(call, answer.code, seconds, demo_secret, request_id, environ.get("HTTP_AUTHORIZATION", ""))
        return True

    def _ask(self, question: BoardQuestion) -> "asyncio.Future[Answer | None]":
        answered: asyncio.Future[Answer | None] = self._loop.create_future()
        self._reads.submit(question, partial(self._resolve, answered))
        return answered

    def _submit(self, request: WriteRequest) -> "asyncio.Future[bool]":
        return (self._claims if request.claims else self._events).submit(request)

    def _commit_claims(self, requests: Sequence[WriteRequest]) -> "asyncio.Future[list[WriteRequest]]":
        """In a thread: what decides about them is read from PostgreSQL and Redis, in turns."""
        return self._loop.run_in_executor(self._cashier, commit_together, requests, True)

    def _resolve(self, future: "asyncio.Future[Any]", result: Any) -> None:
        """From another thread. The loop is woken once for all requests of a commit."""
        self._resolved.append((future, result))
        if not self._is_woken:
            self._is_woken = True
            self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._is_woken = False  # before the first is taken: who comes later wakes the loop again
        while self._resolved:
            future, result = self._resolved.popleft()
            if not future.done():
                future.set_result(result)

    async def _add_body(self, environ: Environ, server: Any) -> None:
        """Receive a short body; the rest of any other when it is read. `app.http.body` checks how long it may be."""
        length = environ.get("CONTENT_LENGTH", "")
        if not length:
            body = Chunks(server)
            if await self._within_time(body.receive(MAX_EARLY_BYTES), False):
                environ["wsgi.input"] = LateBody(body.receive_all, self._loop, self._slow_bodies)
            else:
                environ["wsgi.input"] = body.start if body.is_whole else Incomplete()
        elif int(length) <= MAX_EARLY_BYTES:
            environ["wsgi.input"] = BytesIO(await self._within_time(_receive(server), b""))
        else:
            environ["wsgi.input"] = LateBody(lambda _: _receive(server), self._loop, self._slow_bodies)

    async def _within_time(self, receive: Coroutine[Any, Any, Received], otherwise: Received) -> Received:
        """What is received in time. (The server gives up a coroutine that waits for a cancelled task.)"""
        received: asyncio.Future[Received] = self._loop.create_future()

        def resolve(result: Callable[[], Received]) -> None:
            if not received.done():
                received.set_result(result())

        receiving = self._loop.create_task(receive)
        receiving.add_done_callback(lambda task: resolve(task.result))
        late = self._loop.call_later(MAX_RECEIVE_S, resolve, lambda: otherwise)
        try:
            return await received
        finally:
            late.cancel()
            receiving.cancel()

    async def _answer_in_thread(self, environ: Environ, server: Any) -> None:
        answered: asyncio.Future[None] = self._loop.create_future()
        self._threads.submit(self._answer, environ, server, answered)
        await answered

    def _answer(self, environ: Environ, server: Any, answered: "asyncio.Future[None]") -> None:
        """Call the WSGI application. Runs in a thread."""
        try:
            _call_wsgi(self._app, environ, server)
        except Exception:
            log.exception("a request failed outside of its route", action="request.failed")
            server.response_empty(500, [])
        finally:
            self._resolve(answered, None)


def environ_of(scope: Scope) -> Environ:
    """The request as WSGI describes it (PEP 3333)."""
    path = scope.path
    address, _, _ = scope.client.rpartition(":")
    host, _, port = scope.server.rpartition(":")
    environ: Environ = {
        "REQUEST_METHOD": scope.method,
        "PATH_INFO": path if path.isascii() else path.encode(errors="surrogatepass").decode("latin-1"),
        "QUERY_STRING": scope.query_string,
        "REMOTE_ADDR": address.strip("[]"),
        "SERVER_NAME": host.strip("[]"),
        "SERVER_PORT": port,
        "SERVER_PROTOCOL": f"HTTP/{scope.http_version}",
        "SCRIPT_NAME": "",
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": scope.scheme,
        "wsgi.input": _NOTHING,
        "wsgi.input_terminated": True,
        "wsgi.errors": sys.stderr,
        "wsgi.multithread": True,
        "wsgi.multiprocess": True,
        "wsgi.run_once": False,
    }
    headers = scope.headers
    for name, value in headers.items():
        key = _NAMES.get(name) or _name(name)
        if key not in environ:
            environ[key] = value
        elif key.startswith("HTTP_"):
            environ[key] += (";" if key == "HTTP_COOKIE" else ",") + value
    for name in headers.keys():  # noqa: SIM118  also those whose value is not text, which are sent all the same
        environ.setdefault(_NAMES.get(name) or _name(name), "")
    if scope.authority is not None:
        environ.setdefault("HTTP_HOST", scope.authority)
    return environ


def _is_short(environ: Environ) -> bool:
    """Whether address and body can be read in no time."""
    if edge.TOO_LONG in environ or "HTTP_CONTENT_ENCODING" in environ or "HTTP_TRANSFER_ENCODING" in environ:
        return False
    length = environ.get("CONTENT_LENGTH", "")
    return not length or int(length) <= MAX_SHORT_BYTES


def _name(header: str) -> str:
    """Of a header in the environment. One with an underscore could pretend to be another one."""
    return f"HTTP_{header.upper().replace('-', '_')}" if "_" not in header else "plaudit.ignored_header"


async def _receive(server: Any) -> bytes:
    """The whole body; nothing if the client went away before its end."""
    try:
        return bytes(await server())
    except (ProtocolClosed, ProtocolError):
        return b""


class Chunks:
    """A body of unknown length, as far as it was received."""

    def __init__(self, server: Any) -> None:
        self._chunks = aiter(server)
        self._received = bytearray()
        self._ends = 0
        self.is_whole = False

    @property
    def start(self) -> BytesIO:
        return BytesIO(self._received)

    async def receive(self, max_bytes: int) -> bool:
        """Receive up to its end, or a little more than so many bytes; returns whether there may be more.

        The server's last chunk is empty. Where a body was cut off, so is the one before it.
        """
        while len(self._received) <= max_bytes:
            try:
                chunk = await anext(self._chunks)
            except StopAsyncIteration:
                self.is_whole = self._ends == 1
                return False
            self._ends += not chunk
            self._received += chunk
        return True

    async def receive_all(self, max_bytes: int) -> bytes:
        if not await self.receive(max_bytes) and not self.is_whole:
            raise OSError("the body was cut off")
        return bytes(self._received)


class Incomplete:
    """A body that was cut off, or came too slowly."""

    def read(self, _size: int = -1) -> bytes:
        raise OSError("the body is incomplete")

    readline = read


class LateBody:
    """A body that is received when somebody reads it, who may wait: after the caller is known, for one thing.

    So a caller without credentials, or one who sends more than anybody may, costs no memory. Only some of the threads
    may wait for bodies at once, so that slow senders leave the others alone.
    """

    def __init__(
        self,
        receive: Callable[[int], Coroutine[Any, Any, bytes]],
        loop: asyncio.AbstractEventLoop,
        slow_bodies: threading.BoundedSemaphore,
    ) -> None:
        self._receive = receive
        self._loop = loop
        self._slow_bodies = slow_bodies
        self._received: BytesIO | None = None

    def read(self, size: int = -1) -> bytes:
        return self._body(size).read(size)

    def readline(self, size: int = -1) -> bytes:
        return self._body().readline(size)

    def _body(self, size: int = -1) -> BytesIO:
        if self._received is None:
            if not self._slow_bodies.acquire(blocking=False):
                raise TooManySlowBodies
            try:
                self._received = BytesIO(self._wait(size if size >= 0 else MAX_BODY_BYTES))
            finally:
                self._slow_bodies.release()
        return self._received

    def _wait(self, max_bytes: int) -> bytes:
        receiving = asyncio.run_coroutine_threadsafe(self._receive(max_bytes), self._loop)
        try:
            return receiving.result(MAX_RECEIVE_S)
        except TimeoutError:
            receiving.cancel()
            raise OSError("the body takes too long") from None


def _call_wsgi(app: Any, environ: Environ, server: Any) -> None:
    started: list[tuple[int, Headers]] = []

    def start_response(status: str, headers: Headers, _exc_info: object = None) -> None:
        started[:] = [(int(status[:3]), headers)]

    pieces = app(environ, start_response)
    try:
        status, headers = started[0]
        is_long = environ["REQUEST_METHOD"] != "HEAD" and status not in NEVER_A_BODY
        if not is_long or any(name.lower() == "content-length" for name, _ in headers):
            body = b"".join(pieces)
            if body:
                server.response_bytes(status, headers, body)
            else:
                server.response_empty(status, headers)
        else:
            send_through_pipe(server, status, headers, pieces)
    finally:
        if hasattr(pieces, "close"):
            pieces.close()


_NOTHING = BytesIO()
_NAMES = {
    name: f"HTTP_{name.upper().replace('-', '_')}"
    for name in ("accept", "accept-encoding", "authorization", "connection", "host", "if-none-match", "user-agent")
} | {"content-type": "CONTENT_TYPE", "content-length": "CONTENT_LENGTH"}
