"""The way from a route to the group commit."""

from collections.abc import Sequence

from flask import current_app, g, request

from analytics import ingest
from analytics.ingest import GroupCommit, Outcome, Part
from analytics.wake import wake
from app.auth import BadCredentials
from app.transactions import after_commit
from tenants.signing import BadToken

# In the environment of a request that the fast lane has written already: its outcomes, or its error.
WRITTEN = "plaudit.written"


def write(part: Part) -> Sequence[Outcome]:
    """Write a part and wait for its commit; inside an idempotent request, in that request's own transaction."""
    done: Sequence[Outcome] | BaseException | None = request.environ.pop(WRITTEN, None)
    try:
        if isinstance(done, BaseException):
            raise done
        if done is not None:
            return done
        if g.get("tx") is not None:
            ingest.apply(g.tx, [part])
            after_commit(lambda: wake([part.tenant_id]))
            if part.error is not None:
                raise part.error
            return part.outcomes
        group: GroupCommit = current_app.extensions["plaudit-ingest"]
        return group.write(part)
    except BadToken:
        raise BadCredentials from None
