"""The transaction of a request, and `Idempotency-Key` inside it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar

from flask import Response, after_this_request, g, make_response, request

from app.auth import current_actor
from app.body import read_bytes
from tenants import idempotency, logs
from tenants.db import Tx, tenant_tx, utcnow

View = TypeVar("View", bound=Callable[..., Any])

KEPT_HEADERS = ("Content-Type", "ETag", "Location")


@contextmanager
def actor_tx() -> Iterator[Tx]:
    """The caller's tenant. Inside an idempotent request, the transaction that also keeps its answer."""
    shared: Tx | None = g.get("tx")
    if shared is not None:
        yield shared
        return
    with tenant_tx(current_actor().tenant_id) as tx:
        yield tx


def idempotent(view: View) -> View:
    """Let callers send `Idempotency-Key`: the same key and body get the first answer again, and nothing changes.

    Goes below `@requires` and above the route's response. Refusals are not kept: they changed nothing.
    """

    @wraps(view)
    def answer(*args: Any, **kwargs: Any) -> Any:
        key = request.headers.get("Idempotency-Key")
        if key is None:
            return run_and_tell(view, *args, **kwargs)
        claimed = idempotency.claim(
            caller=current_actor().caller,
            method=request.method,
            path=request.path,
            key=key,
            body=read_bytes(request.environ),
        )
        now = utcnow()
        with tenant_tx(current_actor().tenant_id) as tx:
            earlier = idempotency.earlier_answer(tx, claimed, now=now)
            if earlier is not None:
                return _replay(earlier)
            g.tx = tx
            try:
                response = make_response(view(*args, **kwargs))
            finally:
                g.tx = None
            kept = {name: response.headers[name] for name in KEPT_HEADERS if name in response.headers}
            idempotency.keep(tx, claimed, status=response.status_code, headers=kept, body=response.get_data(), now=now)
        _after_commit()
        return response

    answer.plaudit_idempotent = True  # type: ignore[attr-defined]
    return answer  # type: ignore[return-value]


def run_and_tell(view: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    response = view(*args, **kwargs)
    _after_commit()
    return response


def after_commit(action: Callable[[], None]) -> None:
    """Do this once the request's transaction is committed: what tells others of it."""
    g.setdefault("after_commit", []).append(action)


def audit(action: str, **data: Any) -> None:
    """The audit line, once it is true."""
    after_commit(lambda: logs.audit(action, **data))


def _after_commit() -> None:
    for action in g.pop("after_commit", []):
        action()


def _replay(earlier: idempotency.IdempotencyKey) -> Response:
    @after_this_request
    def mark(response: Response) -> Response:
        response.headers["Idempotent-Replay"] = "true"
        return response

    return Response(earlier.body, status=earlier.status, headers=earlier.headers)
