"""The way from a route to the group commit."""

from collections.abc import Sequence

from flask import request

from analytics.ingest import writes
from analytics.ingest.writes import Outcome, Part
from analytics.wake import wake
from app.http.auth import WRITTEN, BadCredentials
from app.http.services import services
from tenants.db import current_tx
from tenants.signing import BadToken


def write(part: Part) -> Sequence[Outcome]:
    """Write a part and wait for its commit; inside an idempotent request, in that request's own transaction."""
    done: Sequence[Outcome] | BaseException | None = request.environ.pop(WRITTEN, None)
    try:
        if isinstance(done, BaseException):
            raise done
        if done is not None:
            return done
        tx = current_tx()
        if tx is not None:
            writes.apply(tx, [part])
            tx.after_commit(lambda: wake([part.tenant_id]))
            if part.error is not None:
                raise part.error
            return part.outcomes
        return services().ingest.write(part)
    except BadToken:
        raise BadCredentials from None
