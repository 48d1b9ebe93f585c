"""The transaction of a request: `Idempotency-Key` inside it, and another attempt after a deadlock."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import wraps
from typing import Any, TypeVar

from flask import Response, after_this_request, g, make_response, request
from sqlalchemy.exc import DBAPIError

from analytics.locks import is_deadlock
from app.http.auth import current_actor
from app.http.body import read_bytes
from tenants import idempotency, logs
from tenants.db import Tx, current_tx, tenant_tx, utcnow
from tenants.errors import DomainError
from tenants.security_events import SecurityEvent

View = TypeVar("View", bound=Callable[..., Any])

MAX_ATTEMPTS = 4
STORED_HEADERS = ("Content-Type", "ETag", "Location")


def actor_tx() -> AbstractContextManager[Tx]:
    """A transaction of the caller's tenant. Inside an idempotent request, the one that also stores its answer."""
    return tenant_tx(current_actor().tenant_id)


def again_after_deadlock(view: View) -> View:
    """Answer the request in another transaction if PostgreSQL rolled its own back as one of a deadlock.

    For requests that lock rows of many kinds, where no order can avoid it. Place it above `@idempotent`.
    """

    @wraps(view)
    def answer(*args: Any, **kwargs: Any) -> Any:
        for _ in range(MAX_ATTEMPTS - 1):
            try:
                return view(*args, **kwargs)
            except DBAPIError as error:
                if not is_deadlock(error):
                    raise
        return view(*args, **kwargs)

    return answer  # type: ignore[return-value]


def idempotent(view: View) -> View:
    """Support `Idempotency-Key`: the same key and body get the first answer again, and nothing changes.

    Place it below `@requires` and above the route's response. Refusals are not stored: they changed nothing.
    """

    @wraps(view)
    def answer(*args: Any, **kwargs: Any) -> Any:
        key = request.headers.get("Idempotency-Key")
        if key is None:
            return view(*args, **kwargs)
        identity = idempotency.identify(
            caller=current_actor().caller,
            rights=current_actor().rights,
            method=request.method,
            path=request.path,
            key=key,
            body=read_bytes(request.environ),
        )
        try:
            return _answer_once(identity, lambda: make_response(view(*args, **kwargs)))
        except BaseException as error:
            refused = g.pop("after_refusal", [])
            for call in [*g.pop("after_rollback", []), *(refused if isinstance(error, DomainError) else [])]:
                call()
            raise

    answer.plaudit_idempotent = True  # type: ignore[attr-defined]
    return answer  # type: ignore[return-value]


def _answer_once(identity: idempotency.RequestIdentity, compute: Callable[[], Response]) -> Response:
    """The answer stored for this identity; or a new one, stored in the transaction of its effect."""
    now = utcnow()
    with actor_tx() as tx:
        earlier = idempotency.earlier_answer(tx, identity, now=now)
        if earlier is not None:
            return _replay(earlier)
        response = compute()
        headers = {name: response.headers[name] for name in STORED_HEADERS if name in response.headers}
        idempotency.keep(tx, identity, status=response.status_code, headers=headers, body=response.get_data(), now=now)
    return response


def after_commit(call: Callable[[], None]) -> None:
    """Call this after the request's transaction commits (at once, if none is open): to notify others of it."""
    tx = current_tx()
    if tx is not None:
        tx.after_commit(call)
    else:
        call()


def after_refusal(call: Callable[[], None]) -> None:
    """Call this after the request's transaction is rolled back (at once, if none is open): to record a refusal."""
    if current_tx() is not None:
        g.setdefault("after_refusal", []).append(call)
    else:
        call()


def after_rollback(call: Callable[[], None]) -> None:
    """Call this if the open transaction of an idempotent request is not committed, for whatever reason."""
    g.setdefault("after_rollback", []).append(call)


def audit(event: SecurityEvent, **data: Any) -> None:
    """Write the audit line after the commit."""
    after_commit(lambda: logs.audit(event, **data))


def _replay(earlier: idempotency.IdempotencyKey) -> Response:
    @after_this_request
    def mark(response: Response) -> Response:
        response.headers["Idempotent-Replay"] = "true"
        return response

    return Response(earlier.body, status=earlier.status, headers=earlier.headers)
