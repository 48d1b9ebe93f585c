"""The busiest calls without Flask.

Flask and our hooks around a route cost several times as much as most of these calls themselves, so their common cases
are answered here: reads whose answer is in memory or can be computed from it (`app.http.fast_reads`), and single writes
(`app.http.fast_writes`). Anything else (another caller, an `Idempotency-Key`, a browser's `Origin`, any error) is
passed on unchanged to the route. Both use the same functions, so their answers differ only in speed.

A `FastLane` is a WSGI application around Flask, for threads that may wait. `read` and `write` are the same for an event
loop (`app.http.front`).
"""

import contextlib
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, assert_never

from analytics.ingest.writes import WriteRequest
from app.http import edge, request_counts
from app.http.answer_cache import Answer
from app.http.auth import WRITTEN, Actor
from app.http.fast_answer import FastAnswer, Header
from app.http.fast_calls import BoardQuestion, Environ, FastCall, FastRead, FastWrite
from app.http.fast_reads import FastReads, to_send
from app.http.fast_writes import FastWrites
from app.http.known_callers import KnownCallers
from app.http.rights import is_allowed
from app.http.services import Services
from tenants import logs
from tenants.shares import TenantShare
from tenants.waiting import WouldWait

StartResponse = Callable[..., Any]
Wsgi = Callable[[Environ, StartResponse], Iterable[bytes]]
# Has a question answered together with others.
Ask = Callable[[BoardQuestion], Awaitable[Answer | None]]
# Has a request written together with others; whether it was, or was refused. If not, a thread must write it.
Submit = Callable[[WriteRequest], Awaitable[bool]]

# Calls of one tenant that wait without a thread: for their commit, or for Redis. More wait for their share of threads.
MAX_IN_FLIGHT_PER_TENANT = 192
# Headers that only the routes support, and their names in the WSGI environment.
SPECIAL_HEADERS = ("idempotency-key", "origin", "x-plaudit-key", "cookie")
# And what else is for the routes only: what was written already, and an address that was truncated.
SPECIAL = frozenset((*(f"HTTP_{name.upper().replace('-', '_')}" for name in SPECIAL_HEADERS), WRITTEN, edge.TOO_LONG))


class FastLane:
    def __init__(self, services: Services, flask: Wsgi) -> None:
        self._flask = flask
        self._group = services.ingest
        self._threads = services.threads
        self._in_flight = TenantShare(MAX_IN_FLIGHT_PER_TENANT, max_waiting=0)
        self._demo_secret = services.settings.demo_secret
        self._callers = KnownCallers(services.signer)
        self.reads = FastReads(services)
        writes = FastWrites(services).find
        self._find: dict[str, Callable[[str, str, str], FastCall | None]] = {
            "GET": self.reads.find,
            "POST": writes,
            "PUT": writes,
            "DELETE": writes,
        }
        self._always = edge.always_headers(https=services.settings.public_url.startswith("https://"))

    def find(self, method: str, path: str, query: str) -> FastCall | None:
        """The call that the lane may answer, unless the request has one of the `SPECIAL` headers."""
        find = self._find.get(method)
        return find(method, path, query) if find is not None else None

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        call = self.find(environ["REQUEST_METHOD"], environ["PATH_INFO"], environ.get("QUERY_STRING", ""))
        if call is None or not environ.keys().isdisjoint(SPECIAL):
            return self._flask(environ, start_response)
        started = time.perf_counter()
        environ["HTTP_X_REQUEST_ID"] = request_id = edge.request_id_of(environ.get("HTTP_X_REQUEST_ID"))
        answer = self._answer(call, environ, request_id)
        if answer is None:
            return self._flask(environ, start_response)
        start_response(answer.status, self.headers_of(answer, request_id))
        seconds, demo_secret = time.perf_counter() - started, environ.get(edge.DEMO_HEADER)
        self.record(call, answer.code, seconds, demo_secret, request_id, environ.get("HTTP_AUTHORIZATION", ""))
        return [answer.body]

    def headers_of(self, answer: FastAnswer, request_id: str) -> list[Header]:
        return [*answer.headers, *self._always, ("X-Request-Id", request_id)]

    def record(
        self,
        call: FastCall,
        status: int,
        seconds: float,
        demo_secret: str | None,
        request_id: str,
        authorization: str,
    ) -> None:
        """Count the call, and log it if it was slow and not the demo's (which sends its secret)."""
        request_counts.add(call.method, call.route, status, seconds)
        if seconds > edge.SLOW_S and not edge.is_sent_by_demo(demo_secret, self._demo_secret):
            with contextlib.suppress(WouldWait):
                actor = self._callers.find(authorization)  # who was known a moment ago
                if actor is not None:
                    logs.begin(request_id=request_id, tenant_id=actor.tenant_id, user_id=actor.id)
            edge.log_request(call.method, call.route, status, seconds)

    def _answer(self, call: FastCall, environ: Environ, request_id: str) -> FastAnswer | None:
        """The answer; None if the route must handle the request."""
        try:
            actor = self._callers.authenticate(environ.get("HTTP_AUTHORIZATION", ""))
            if not is_allowed(actor, call.may):
                return None
            logs.begin(request_id=request_id, tenant_id=actor.tenant_id, user_id=actor.id)
            match call:
                case FastRead():
                    return call.answer(actor.reader, environ)
                case FastWrite():
                    return self._write(call, actor, environ)
                case _:
                    assert_never(call)
        except Exception:  # noqa: BLE001  the route meets the same error, and answers it
            return None

    def _write(self, call: FastWrite, actor: Actor, environ: Environ) -> FastAnswer | None:
        request = call.request(actor, environ)
        if request is None:
            return None
        environ[WRITTEN] = request  # whatever happens, the route does not write again
        try:
            with self._threads.of(request.tenant_id):
                self._group.write(request)
        except Exception as error:  # noqa: BLE001  the route raises it again, and its error handler answers it
            request.error = error
            return None
        return call.answer(actor, environ, request)

    async def read(
        self, call: FastRead, authorization: str, target: str, tags: str | None, ask: Ask
    ) -> FastAnswer | None:
        """The answer to a read from memory, or read together with others; None if a thread must answer.

        `target`: the path with its query. `tags`: the header `If-None-Match`.
        """
        try:
            actor = self._callers.find(authorization)
            if actor is None or not is_allowed(actor, call.may):
                return None
            kept = call.kept(actor.reader, target, tags)
            if kept is not None or call.question is None:
                return kept
            question = call.question(actor.reader, target, target.partition("?")[2])
            if question is None or not self._in_flight.try_acquire(actor.tenant_id):
                return None
            try:
                answer = await ask(question)
            finally:
                self._in_flight.release(actor.tenant_id)
            return to_send(answer, tags) if answer is not None else None
        except Exception:  # noqa: BLE001  a thread may wait; any other error it meets again, and answers it
            return None

    async def write(self, call: FastWrite, environ: Environ, submit: Submit) -> FastAnswer | None:
        """The answer to a write once it is committed; None if a thread must answer.

        If it would have to wait for anything else, nothing is written, and the thread does it. If it was written, the
        environment says so, and the thread does not write again.
        """
        try:
            actor = self._callers.find(environ.get("HTTP_AUTHORIZATION", ""))
            request = call.request(actor, environ) if actor is not None and is_allowed(actor, call.may) else None
            if actor is None or request is None or not self._in_flight.try_acquire(request.tenant_id):
                return None
            try:
                if not await submit(request):
                    return None
                environ[WRITTEN] = request
            finally:
                self._in_flight.release(request.tenant_id)
            return call.answer(actor, environ, request) if request.error is None else None
        except Exception:  # noqa: BLE001  as above
            return None
