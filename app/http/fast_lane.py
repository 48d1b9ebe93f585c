"""The busiest calls without Flask.

Flask and our hooks around a route cost several times as much as most of these calls themselves, so their common cases
are answered here: reads whose answer is in memory or can be computed from it (`app.http.fast_reads`), and single writes
(`app.http.fast_writes`). Anything else (another caller, an `Idempotency-Key`, a browser's `Origin`, any error) is
passed on unchanged to the route. Both use the same functions, so their answers differ only in speed.

A `FastLane` is a WSGI application around Flask, for threads that may wait. `read`, `begin_write` and `end_write` are
the same for an event loop (`app.server.front`).
"""

import contextlib
import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, assert_never

from analytics.ingest.writes import WriteRequest
from app.http import edge, request_counts
from app.http.answer_cache import Answer
from app.http.auth import AUTHENTIC_FOR_S, WRITTEN, Actor, network_of
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
from tenants import credentials, liveness, logs, sessions
from tenants.shares import NOBODY, Caller, TenantShare, current_caller

StartResponse = Callable[..., Any]
Wsgi = Callable[[Environ, StartResponse], Iterable[bytes]]

# Calls of one tenant that wait without a thread: for their commit, or for Redis. More wait for their share of threads.
MAX_IN_FLIGHT_PER_TENANT = 192
# In the environment: the actor whose call in flight this is.
IN_FLIGHT = "plaudit.in_flight"
SESSION_COOKIE = re.compile(r"(?:^|[; ])(?:__Host-)?plaudit_session=([^;]+)")
KEY_IN_QUERY = re.compile(r"(?:^|&)key=([A-Za-z0-9_-]+)")
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

    @property
    def caller(self) -> Caller:
        return Caller(self.actor.tenant_id, self.actor.caller)


class FastLane:
    def __init__(self, services: Services, flask: Wsgi) -> None:
        self._flask = flask
        self._group = services.ingest
        self._threads = services.threads
        self._in_flight = TenantShare(MAX_IN_FLIGHT_PER_TENANT, max_waiting=0)
        self._demo_secret = services.settings.demo_secret
        self._proxy_hops = services.settings.proxy_hops
        self._signer = services.signer
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
        with contextlib.ExitStack() as share:  # that a write uses, also while the route answers what was written
            answer = self._answer(call, environ, request_id, share)
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

    def _answer(
        self, call: FastCall, environ: Environ, request_id: str, share: contextlib.ExitStack
    ) -> FastAnswer | None:
        """The answer; None if the route must handle the request."""
        try:
            since, actor = time.monotonic(), self._callers.authenticate(environ.get("HTTP_AUTHORIZATION", ""))
            if not is_allowed(actor, call.may):
                return None
            logs.begin(request_id=request_id, tenant_id=actor.tenant_id, user_id=actor.id)
            current_caller.set(Caller(actor.tenant_id, actor.caller))
            match call:
                case FastRead():
                    return call.answer(actor.reader, environ)
                case FastWrite():
                    return self._write(call, actor, environ, share, since)
                case _:
                    assert_never(call)
        except Exception:  # noqa: BLE001  the route meets the same error, and answers it
            return None

    def _write(
        self, call: FastWrite, actor: Actor, environ: Environ, share: contextlib.ExitStack, since: float
    ) -> FastAnswer | None:
        """`since`: when the actor was authenticated."""
        request = call.request(actor, environ)
        if request is None:
            return None
        environ[WRITTEN] = request  # whatever happens, the route does not write again
        try:
            share.enter_context(self._threads.of(actor.tenant_id, actor.caller))
            is_stale = time.monotonic() - since > AUTHENTIC_FOR_S
            if is_stale and self._callers.authenticate(environ.get("HTTP_AUTHORIZATION", "")) != actor:
                del environ[WRITTEN]  # for the route, with the rights of now
                share.close()
                return None
            self._group.write(request)
        except Exception as error:  # noqa: BLE001  the route raises it again, and its error handler answers it
            request.error = error
            return None
        return call.answer(actor, environ, request)

    def find_plain(self, environ: Environ) -> FastCall | None:
        """The call, if nothing about the request is special."""
        call = self.find(environ["REQUEST_METHOD"], environ["PATH_INFO"], environ["QUERY_STRING"])
        return call if call is not None and environ.keys().isdisjoint(SPECIAL) else None

    def caller_of(self, environ: Environ) -> Caller:
        """Whose request it is, as far as that is certain without waiting, for the bound on requests under way.

        A name that nobody has verified could be another one's: its caller is nobody's, by network. Callers with a key
        are not counted with their tenant, since anybody can find its key in a page.
        """
        network = network_of(environ, proxy_hops=self._proxy_hops)
        with contextlib.suppress(Exception):  # a thread meets the same error, and answers it
            if authorization := environ.get("HTTP_AUTHORIZATION", ""):
                # While revocations cannot be read nobody is known for certain, and that is when threads are few.
                actor = self._callers.last_known(authorization)
                return Caller(actor.tenant_id, actor.caller) if actor is not None else Caller(NOBODY, network)
            if cookie := SESSION_COOKIE.search(environ.get("HTTP_COOKIE", "")):
                session = sessions.parse_cookie(cookie[1], self._signer)
                return Caller(session.tenant_id, f"user:{session.user_id}") if session else Caller(NOBODY, network)
            in_query = KEY_IN_QUERY.search(environ.get("QUERY_STRING", ""))
            given = environ.get("HTTP_X_PLAUDIT_KEY") or (in_query[1] if in_query else "")
            key = credentials.find_key(given) if given else None
            return Caller(f"{key.tenant_id} by key", network) if key is not None else Caller(NOBODY, network)
        return Caller(NOBODY, network)

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
            question = call.question(actor, target, query)
            if isinstance(question, BoardQuestion) and not self._in_flight.try_acquire(actor.tenant_id, actor.caller):
                return None
            return question
        except Exception:  # noqa: BLE001  a thread may wait; any other error it meets again, and answers it
            return None

    def end_read(self, question: BoardQuestion, environ: Environ, answer: Answer | None) -> FastAnswer | None:
        """What was asked; None: a thread must answer."""
        self._in_flight.release(question.reader.tenant_id, question.caller)
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
            if not self._in_flight.try_acquire(actor.tenant_id, actor.caller):
                return None
            return PendingWrite(call, actor, request)
        except Exception:  # noqa: BLE001  as above
            return None

    def end_write(self, pending: PendingWrite, environ: Environ, *, is_decided: bool) -> FastAnswer | None:
        """The answer to a write that was committed or refused; None: a thread must answer.

        If it was not decided, nothing was written, and the thread writes it. Otherwise the environment says so, and the
        thread does not write again; it is a call in flight until `leave`.
        """
        request, answer = pending.request, None
        if is_decided:
            environ[WRITTEN] = request
            with contextlib.suppress(Exception):  # as above
                answer = pending.call.answer(pending.actor, environ, request) if request.error is None else None
        environ[IN_FLIGHT] = pending.actor
        if answer is not None or not is_decided:
            self.leave(environ)
        return answer

    def leave(self, environ: Environ) -> None:
        """The request was answered, or is a thread's to execute as any other: it is no call in flight any more."""
        actor: Actor | None = environ.pop(IN_FLIGHT, None)
        if actor is not None:
            self._in_flight.release(actor.tenant_id, actor.caller)


def _unknown_caller(authorization: str) -> UnknownCaller | None:
    """Whom to look up; None: a thread must, since nothing is answered from memory at the moment."""
    return UnknownCaller(authorization) if authorization and liveness.is_trusted() else None
