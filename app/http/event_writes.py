"""Writing events from a route: through the group commit."""

from collections.abc import Sequence

from flask import request

from analytics.ingest import writes
from analytics.ingest.writes import Outcome, WriteRequest
from app.http.auth import WRITTEN, BadCredentials
from app.http.services import services
from tenants.db import current_tx
from tenants.signing import BadToken


def write(write_request: WriteRequest) -> Sequence[Outcome]:
    """Write, and return after the commit; inside an idempotent request, in that request's own transaction."""
    written: Sequence[Outcome] | BaseException | None = request.environ.pop(WRITTEN, None)
    try:
        if isinstance(written, BaseException):
            raise written
        if written is not None:
            return written
        tx = current_tx()
        if tx is not None:
            writes.apply(tx, write_request)
            if write_request.error is not None:
                raise write_request.error
            return write_request.outcomes
        return services().ingest.write(write_request)
    except BadToken:
        raise BadCredentials from None
