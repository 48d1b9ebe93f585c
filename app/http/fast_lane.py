"""The busiest calls without Flask.

Flask and our hooks around a route cost several times as much as most of these calls themselves, so their common cases
are answered here: reads whose answer is in memory or can be computed from it (`app.http.fast_reads`), and single writes
(`app.http.fast_writes`). Anything else (another caller, an `Idempotency-Key`, a browser's `Origin`, any error) is
passed on unchanged to the route. Both use the same functions, so their answers differ only in speed.

A `FastLane` is a WSGI application around Flask, for threads that may wait. `read`, `begin_write` and `end_write` are
the same for an event loop (`app.server.front`).
"""

import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, assert_never

from analytics.ingest.writes import WriteRequest
from app.http import edge, request_counts
from app.http.answer_cache import Answer
from app.http.auth import WRITTEN, Actor
from app.http.fast_answer import FastAnswer, Header
from app.http.fast_calls import (
    BoardQuestion,
    Environ,
    FastCall,
    FastRead,
    FastWrite,
    Unknown,
    UnknownCaller,
    UnknownPage,
)
from app.http.fast_reads import FastReads, to_send_if_newest
from app.http.fast_writes import FastWrites
from app.http.known_callers import KnownCallers
from app.http.rights import is_allowed
from app.http.services import Services
from tenants import liveness, logs
from tenants.shares import TenantShare

StartResponse = Callable[..., Any]
Wsgi = Callable[[Environ, StartResponse], Iterable[bytes]]

# Calls of one tenant that wait without a thread: for their commit, or for Redis. More wait for their share of threads.
MAX_IN_FLIGHT_PER_TENANT = 192
# Headers that only the routes support, and their names in the WSGI environment.
SPECIAL_HEADERS = ("idempotency-key", "origin", "x-plaudit-key", "cookie")
# And what else is for the routes only: what was written already, and an address that was truncated.
SPECIAL = frozenset((*(f"HTTP_{name.upper().replace('-', '_')}" for name in SPECIAL_HEADERS), WRITTEN, edge.TOO_LONG))


@dataclass(slots=True)
class PendingWrite:
    """A write that is under way on the event loop."""

    call: FastWrite
    actor: Actor
    request: WriteRequest


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
        self.always = edge.always_headers(https=services.settings.public_url.startswith("https://"))

    def find(self, method: str, path: str, query: str) -> FastCall | None:
        """The call that the lane may answer, unless the request has one of the `SPECIAL` headers."""
        find = self._find.get(method)
        return find(method, path, query) if find is not None else None

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        call = self.find(environ["REQUEST_METHOD"], environ["PATH_INFO"], environ.get("QUERY_STRING", ""))
        if call is None or liveness.difference() is not None or not environ.keys().isdisjoint(SPECIAL):
            return self._flask(environ, start_response)
        started = time.perf_counter()
        environ["HTTP_X_REQUEST_ID"] = request_id = edge.request_id_of(environ.get("HTTP_X_REQUEST_ID"))
        answer = self._answer(call, environ, request_id)
        if answer is None:
            return self._flask(environ, start_response)
        start_response(answer.status, self.headers_of(answer, request_id))
        self.record(call, answer.code, time.perf_counter() - started, request_id, environ)
        return [answer.body]

    def headers_of(self, answer: FastAnswer, request_id: str) -> list[Header]:
        return [*answer.headers, *self.always, ("X-Request-Id", request_id)]

    def record(self, call: FastCall, status: int, seconds: float, request_id: str, environ: Environ) -> None:
        """Count the call, and log some, and all slow ones, but the demo's (which sends its secret)."""
        request_counts.add(call.method, call.route, status, seconds)
        if edge.is_sent_by_demo(environ.get(edge.DEMO_HEADER), self._demo_secret):
            return
        stands_for = 1 if seconds > edge.SLOW_S else edge.quiet_lines.next()
        if stands_for:
            logs.begin(request_id=request_id)  # on a loop, another request's may be set
            with contextlib.suppress(Exception):  # who was known a moment ago may not be valid any more
                actor = self._callers.find(environ.get("HTTP_AUTHORIZATION", ""))
                if actor is not None:
                    logs.begin(request_id=request_id, tenant_id=actor.tenant_id, user_id=actor.id)
            edge.log_request(call.method, call.route, status, seconds, stands_for=stands_for)

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

    def find_plain(self, environ: Environ) -> FastCall | None:
        """The call, if nothing about the request is special."""
        call = self.find(environ["REQUEST_METHOD"], environ["PATH_INFO"], environ["QUERY_STRING"])
        return call if call is not None and environ.keys().isdisjoint(SPECIAL) else None

    def tenant_of(self, environ: Environ) -> str:
        """The caller's tenant, as far as that is known without waiting; else empty."""
        authorization = environ.get("HTTP_AUTHORIZATION", "")
        with contextlib.suppress(Exception):  # a thread meets the same error, and answers it
            actor = self._callers.find(authorization) if authorization else None
            return actor.tenant_id if actor is not None else ""
        return ""

    def learn(self, unknown: Sequence[Unknown]) -> list[None]:
        """Look these up together, so that the loop knows them; whatever does not exist stays unknown. May wait."""
        with contextlib.suppress(Exception):  # a thread meets the same error, and answers it
            self._callers.learn([one.authorization for one in unknown if isinstance(one, UnknownCaller)])
        with contextlib.suppress(Exception):
            self.reads.learn_pages(one for one in unknown if isinstance(one, UnknownPage))
        return [None] * len(unknown)

    def read(self, call: FastRead, environ: Environ) -> FastAnswer | BoardQuestion | Unknown | None:
        """The answer to a read from memory; or what must be asked together with others, which `end_read` ends.

        Or what must be looked up first. None: a thread must answer.
        """
        try:
            authorization = environ.get("HTTP_AUTHORIZATION", "")
            actor = self._callers.find(authorization)
            if actor is None:
                return _unknown_caller(authorization)
            if not is_allowed(actor, call.may):
                return None
            query = environ["QUERY_STRING"]
            target = f"{environ['PATH_INFO']}?{query}"
            kept = call.kept(actor.reader, target, environ.get("HTTP_IF_NONE_MATCH"))
            if kept is not None or call.question is None:
                return kept
            question = call.question(actor.reader, target, query)
            if isinstance(question, BoardQuestion) and not self._in_flight.try_acquire(actor.tenant_id):
                return None
            return question
        except Exception:  # noqa: BLE001  a thread may wait; any other error it meets again, and answers it
            return None

    def end_read(self, question: BoardQuestion, environ: Environ, answer: Answer | None) -> FastAnswer | None:
        """What was asked; None: a thread must answer."""
        self._in_flight.release(question.reader.tenant_id)
        return to_send_if_newest(answer, environ.get("HTTP_IF_NONE_MATCH"))

    def begin_write(self, call: FastWrite, environ: Environ) -> PendingWrite | UnknownCaller | None:
        """What is to be written; `end_write` ends it. Or who must be looked up first.

        None: a thread must write, since something would have to wait.
        """
        try:
            authorization = environ.get("HTTP_AUTHORIZATION", "")
            actor = self._callers.find(authorization)
            if actor is None:
                return _unknown_caller(authorization)
            request = call.request(actor, environ) if is_allowed(actor, call.may) else None
            if request is None:
                return None
            request.prepare()
            if not self._in_flight.try_acquire(request.tenant_id):
                return None
            return PendingWrite(call, actor, request)
        except Exception:  # noqa: BLE001  as above
            return None

    def end_write(self, pending: PendingWrite, environ: Environ, *, is_decided: bool) -> FastAnswer | None:
        """The answer to a write that was committed or refused; None: a thread must answer.

        If it was not decided, nothing was written, and the thread writes it. Otherwise the environment says so, and the
        thread does not write again.
        """
        request = pending.request
        self._in_flight.release(request.tenant_id)
        if not is_decided:
            return None
        environ[WRITTEN] = request
        try:
            return pending.call.answer(pending.actor, environ, request) if request.error is None else None
        except Exception:  # noqa: BLE001  as above
            return None


def _unknown_caller(authorization: str) -> UnknownCaller | None:
    """Whom to look up; None: a thread must, since nothing is answered from memory at the moment."""
    return UnknownCaller(authorization) if authorization and liveness.is_trusted() else None
