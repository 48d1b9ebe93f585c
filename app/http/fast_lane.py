"""The busiest calls without Flask.

Flask and our hooks around a route cost several times as much as most of these calls themselves, so their common cases
are answered here: reads whose answer is in memory or can be computed from it (`app.http.fast_reads`), and single writes
(`app.http.fast_writes`). Anything else (another caller, an `Idempotency-Key`, a browser's `Origin`, any error) is
passed on unchanged to the route. Both use the same functions, so their answers differ only in speed.
"""

import time
from collections.abc import Callable, Iterable
from typing import Any

from app.http import edge, request_counts
from app.http.fast_answer import FastAnswer
from app.http.fast_calls import Environ, FastCall
from app.http.fast_reads import FastReads
from app.http.fast_writes import FastWrites
from app.http.known_callers import KnownCallers
from app.http.rights import is_allowed
from app.http.services import Services
from tenants import logs

StartResponse = Callable[..., Any]
Wsgi = Callable[[Environ, StartResponse], Iterable[bytes]]

# Headers that only the routes support.
SPECIAL = frozenset({"HTTP_IDEMPOTENCY_KEY", "HTTP_ORIGIN", "HTTP_X_PLAUDIT_KEY", "HTTP_COOKIE"})


class FastLane:
    def __init__(self, services: Services, flask: Wsgi) -> None:
        self._flask = flask
        self._demo_secret = services.settings.demo_secret
        self._callers = KnownCallers(services.signer)
        writes = FastWrites(services).find
        self._find = {"GET": FastReads(services).find, "POST": writes, "PUT": writes, "DELETE": writes}
        self._always = edge.always_headers(https=services.settings.public_url.startswith("https://"))

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        find = self._find.get(environ["REQUEST_METHOD"])
        call = find(environ) if find is not None else None
        if call is None or not environ.keys().isdisjoint(SPECIAL):
            return self._flask(environ, start_response)
        started = time.perf_counter()
        environ["HTTP_X_REQUEST_ID"] = request_id = edge.request_id_of(environ)
        answer = self._answer(call, environ, request_id)
        if answer is None:
            return self._flask(environ, start_response)
        start_response(answer.status, [*answer.headers, *self._always, ("X-Request-Id", request_id)])
        self._record(call, answer.code, time.perf_counter() - started, environ)
        return [answer.body]

    def _answer(self, call: FastCall, environ: Environ, request_id: str) -> FastAnswer | None:
        """The answer; None if the route must handle the request."""
        try:
            actor = self._callers.authenticate(environ.get("HTTP_AUTHORIZATION", ""))
            if not is_allowed(actor, call.may):
                return None
            logs.begin(request_id=request_id, tenant_id=actor.tenant_id, user_id=actor.id)
            return call.answer(actor, environ)
        except Exception:  # noqa: BLE001  the route meets the same error, and answers it
            return None

    def _record(self, call: FastCall, status: int, seconds: float, environ: Environ) -> None:
        request_counts.add(call.method, call.route, status, seconds)
        if seconds > edge.SLOW_S and not edge.is_sent_by_demo(environ, self._demo_secret):
            edge.log_request(call.method, call.route, status, seconds)
