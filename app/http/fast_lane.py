"""The busiest call, a single view, without Flask.

Flask and our hooks around a route cost several times as much as the view itself, so the common case is answered here: a
client's token, a valid body, an existing page. Anything else (another caller, an `Idempotency-Key`, a browser's
`Origin`, any error) is passed on unchanged to the route in `app/api/events.py`. Both use the same functions, so their
answers differ only in speed.
"""

import re
import time
from collections.abc import Callable, Iterable
from typing import Any

from analytics.ingest.reasons import Result
from analytics.ingest.writes import WriteRequest
from app.http import edge
from app.http.auth import WRITTEN, Actor, authenticate_bearer
from app.http.rights import May, is_allowed
from app.http.services import Services
from app.http.single_views import count_view, view_answer, view_request
from tenants import logs

Environ = dict[str, Any]
StartResponse = Callable[..., Any]
Wsgi = Callable[[Environ, StartResponse], Iterable[bytes]]

ROUTE = "/api/v1/pages/<external_id>/views"
PATH = re.compile(r"/api/v1/pages/([^/]+)/views")
# Headers that only the route supports.
SPECIAL = ("HTTP_IDEMPOTENCY_KEY", "HTTP_ORIGIN")


class FastLane:
    def __init__(self, services: Services, flask: Wsgi) -> None:
        self._flask = flask
        self._demo_secret = services.settings.demo_secret
        self._signer = services.signer
        self._group = services.ingest
        self._threads = services.threads
        self._headers = [
            ("Content-Type", "application/json"),
            *edge.always_headers(https=services.settings.public_url.startswith("https://")),
            *edge.DEFAULT_HEADERS,
        ]

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        match = PATH.fullmatch(environ["PATH_INFO"]) if environ["REQUEST_METHOD"] == "POST" else None
        if match is None or environ.get("QUERY_STRING") or any(name in environ for name in SPECIAL):
            return self._flask(environ, start_response)
        started = time.perf_counter()
        environ["HTTP_X_REQUEST_ID"] = request_id = edge.request_id_of(environ)
        view = self._prepare(environ, request_id, match[1])
        result = self._write(environ, view) if view is not None else None
        if view is None or result is None:
            return self._flask(environ, start_response)
        count_view(view.tenant_id, result)
        body = view_answer(result)
        start_response(
            "202 ACCEPTED", [*self._headers, ("Content-Length", str(len(body))), ("X-Request-Id", request_id)]
        )
        self._record(time.perf_counter() - started, environ)
        return [body]

    def _prepare(self, environ: Environ, request_id: str, external_id: str) -> WriteRequest | None:
        """What to write; None if the route must handle the request."""
        try:
            actor = authenticate_bearer(environ.get("HTTP_AUTHORIZATION", ""), self._signer, check_token=False)
            if not _may_send(actor):
                return None
            logs.begin(request_id=request_id, tenant_id=actor.tenant_id, user_id=actor.id)
            return view_request(actor, external_id, environ)
        except Exception:  # noqa: BLE001  the route meets the same error, and answers it
            return None

    def _write(self, environ: Environ, view: WriteRequest) -> Result | None:
        """The result; None if the route must answer: it gets the outcomes by `WRITTEN`, and does not write again."""
        try:
            with self._threads.of(view.tenant_id):
                outcomes = self._group.write(view)
        except Exception as error:  # noqa: BLE001  the route raises it again, and its error handler answers it
            environ[WRITTEN] = error
            return None
        if outcomes[0].result is Result.UNKNOWN_PAGE:
            environ[WRITTEN] = outcomes
            return None
        return outcomes[0].result

    def _record(self, seconds: float, environ: Environ) -> None:
        edge.measure("POST", ROUTE, 202, seconds)
        if seconds > edge.SLOW_S and not edge.is_sent_by_demo(environ, self._demo_secret):
            edge.log_request("POST", ROUTE, 202, seconds)


def _may_send(actor: Actor) -> bool:
    return actor.kind == "client" and is_allowed(actor, May.SEND_EVENTS)
