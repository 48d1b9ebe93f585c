"""The transaction of a request, and `Idempotency-Key` inside it."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import wraps
from typing import Any, TypeVar

from flask import Response, after_this_request, g, make_response, request

from app.http.auth import current_actor
from app.http.body import read_bytes
from tenants import idempotency, logs
from tenants.db import Tx, current_tx, tenant_tx, utcnow
from tenants.errors import DomainError

View = TypeVar("View", bound=Callable[..., Any])

KEPT_HEADERS = ("Content-Type", "ETag", "Location")


def actor_tx() -> AbstractContextManager[Tx]:
    """The caller's tenant. Inside an idempotent request, the transaction that also keeps its answer."""
    return tenant_tx(current_actor().tenant_id)


def idempotent(view: View) -> View:
    """Let callers send `Idempotency-Key`: the same key and body get the first answer again, and nothing changes.

    Goes below `@requires` and above the route's response. Refusals are not kept: they changed nothing.
    """

    @wraps(view)
    def answer(*args: Any, **kwargs: Any) -> Any:
        key = request.headers.get("Idempotency-Key")
        if key is None:
            return view(*args, **kwargs)
        claimed = idempotency.identify(
            caller=current_actor().caller,
            method=request.method,
            path=request.path,
            key=key,
            body=read_bytes(request.environ),
        )
        try:
            return _answer_once(claimed, lambda: make_response(view(*args, **kwargs)))
        except DomainError:
            for record in g.pop("after_refusal", ()):
                record()
            raise

    answer.plaudit_idempotent = True  # type: ignore[attr-defined]
    return answer  # type: ignore[return-value]


def _answer_once(claimed: idempotency.RequestIdentity, make: Callable[[], Response]) -> Response:
    """The answer kept for this claim; or the one that is made now, kept in the transaction of its effect."""
    now = utcnow()
    with actor_tx() as tx:
        earlier = idempotency.earlier_answer(tx, claimed, now=now)
        if earlier is not None:
            return _replay(earlier)
        response = make()
        kept = {name: response.headers[name] for name in KEPT_HEADERS if name in response.headers}
        idempotency.keep(tx, claimed, status=response.status_code, headers=kept, body=response.get_data(), now=now)
    return response


def after_commit(call: Callable[[], None]) -> None:
    """Do this once the request's transaction is committed (at once, if none is open): what tells others of it."""
    tx = current_tx()
    if tx is not None:
        tx.after_commit(call)
    else:
        call()


def after_refusal(call: Callable[[], None]) -> None:
    """Do this once the request's transaction is rolled back (at once, if none is open): what records a refusal."""
    if current_tx() is not None:
        g.setdefault("after_refusal", []).append(call)
    else:
        call()


def audit(action: str, **data: Any) -> None:
    """The audit line, once it is true."""
    after_commit(lambda: logs.audit(action, **data))


def _replay(earlier: idempotency.IdempotencyKey) -> Response:
    @after_this_request
    def mark(response: Response) -> Response:
        response.headers["Idempotent-Replay"] = "true"
        return response

    return Response(earlier.body, status=earlier.status, headers=earlier.headers)
