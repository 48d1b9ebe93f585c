"""Writing events from a route: through the group commit."""

from collections.abc import Sequence
from functools import partial

from flask import request

from analytics.ingest import writes
from analytics.ingest.writes import Outcome, WriteRequest
from app.http.auth import WRITTEN, BadCredentials
from app.http.services import services
from app.http.transactions import after_rollback
from tenants.db import current_tx
from tenants.signing import BadToken


def write(write_request: WriteRequest) -> Sequence[Outcome]:
    """Write, and return after the commit; inside an idempotent request, in that request's own transaction.

    What the fast lane has written already is not written again: the request gets its outcomes.
    """
    written: WriteRequest | None = request.environ.pop(WRITTEN, None)
    try:
        if written is not None:
            write_request.outcomes, write_request.payments = written.outcomes, written.payments
            write_request.error = written.error
        elif (tx := current_tx()) is not None:
            after_rollback(partial(write_request.give_back, is_written=False))
            writes.apply(tx, write_request)
        else:
            services().ingest.write(write_request)
        if write_request.error is not None:
            raise write_request.error
    except BadToken:
        raise BadCredentials from None
    return write_request.outcomes
