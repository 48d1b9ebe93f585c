"""The log line of each score update: all of them up to a rate, above it one of many (`tenants.logs.Sampled`)."""

import time
from collections.abc import Callable, Sequence

import structlog

from analytics.scores.actions import Payment
from tenants.logs import SAMPLED, Sampled

# In a second and process, each with a line of its own.
MAX_LINES_PER_S = 50

# With the id of its request.
LoggedPayment = tuple[Payment, str | None]

log = structlog.get_logger()


class UpdateLog:
    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._lines = Sampled(MAX_LINES_PER_S, clock=clock)

    def record(self, tenant_id: str, payments: Sequence[LoggedPayment]) -> None:
        """Committed payments. Called by the event loop and by threads."""
        if not payments:
            return
        start, places = self._lines.of(len(payments))
        for payment, request_id in payments[:start]:
            _log(tenant_id, payment, request_id)
        for place in places:
            _log(tenant_id, *payments[place], sampled=SAMPLED)


def _log(tenant_id: str, payment: Payment, request_id: str | None, **more: int) -> None:
    log.info(
        "score update",
        action="score_update",
        tenantId=tenant_id,
        userId=str(payment.user_id),
        requestId=request_id,  # not that of the thread or loop that commits for many
        data={"scoreDelta": payment.delta, "newScore": payment.score, "rank": payment.rank, **more},
    )


updates = UpdateLog()
