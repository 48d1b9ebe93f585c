"""The log line of each score update: all of them up to a rate, above it one of many.

A line takes some 70 µs, so at thousands a second they would take a third of the
process. A line that stands for several says so in `sampled`: the sum of that (1 where it is missing) is the number of
updates.
"""

import threading
import time
from collections.abc import Callable, Sequence

import structlog

from analytics.scores.actions import Payment

# In a second and process, each with a line of its own; of those above one of `SAMPLED`.
MAX_LINES_PER_S = 50
SAMPLED = 100

log = structlog.get_logger()


class UpdateLog:
    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._second = 0
        self._seen = 0  # in this second
        self._above = 0  # of all seconds, those above the rate

    def record(self, tenant_id: str, payments: Sequence[Payment]) -> None:
        """Committed payments. Called by the event loop and by threads."""
        if not payments:
            return
        with self._lock:
            second = int(self._clock())
            if second != self._second:
                self._second, self._seen = second, 0
            start = min(max(MAX_LINES_PER_S - self._seen, 0), len(payments))
            above = self._above
            self._seen += len(payments)
            self._above += len(payments) - start
        for payment in payments[:start]:
            _log(tenant_id, payment)
        # Of those above, the hundredth, the two hundredth, …: also where no second has a hundred of them.
        for place in range(start + SAMPLED - 1 - above % SAMPLED, len(payments), SAMPLED):
            _log(tenant_id, payments[place], sampled=SAMPLED)


def _log(tenant_id: str, payment: Payment, **more: int) -> None:
    log.info(
        "score update",
        action="score_update",
        tenantId=tenant_id,
        userId=str(payment.user_id),
        requestId=None,  # a commit may have those of many requests
        data={"scoreDelta": payment.delta, "newScore": payment.score, "rank": payment.rank, **more},
    )


updates = UpdateLog()
