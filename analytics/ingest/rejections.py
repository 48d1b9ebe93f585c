"""How many events were refused, for a tenant's admins. (The SQL function `count_rejections` counts them.)"""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from sqlalchemy import BigInteger, text
from sqlalchemy.orm import Mapped, mapped_column

from analytics.ingest.reasons import reason_of
from analytics.scores.actions import PayloadDiffers, Payment, Verification
from tenants.db import Base, DeletedWithTenant, Tx

if TYPE_CHECKING:
    from analytics.ingest.writes import WriteRequest


class RejectionsHour(DeletedWithTenant, Base):
    """How many events were refused, by hour and reason."""

    __tablename__ = "ingest_rejections_hour"

    bucket_hour: Mapped[datetime] = mapped_column(primary_key=True)
    reason: Mapped[str] = mapped_column(primary_key=True)
    rejected: Mapped[int] = mapped_column(BigInteger)


def of_requests(requests: Sequence["WriteRequest"]) -> Counter[str]:
    """Why events of these were refused, and how many, once all have their outcomes.

    Refused claims of a tenant's app are rejected events too.
    """
    rejected: Counter[str] = Counter()
    for request in requests:
        rejected.update(request.rejected or {})
        rejected.update(outcome.result.reason for outcome in request.outcomes if outcome.result.reason)
        for claim, outcome in zip(request.claims, request.payments, strict=True):
            if isinstance(outcome, Payment | PayloadDiffers) or claim.verification is not Verification.CLIENT:
                continue
            rejected[reason_of(outcome).value] += 1
    return rejected


def count(tx: Tx, rejected: Mapping[str, int], *, now: datetime) -> None:
    """Count events that were refused, by reason."""
    if rejected:
        reasons, counts = list(rejected), list(rejected.values())
        tx.run(_COUNT, {"tenant": tx.tenant, "now": now, "reasons": reasons, "refused": counts})


_COUNT = text("""
    SELECT count_rejections(:tenant, CAST(:now AS timestamptz), CAST(:reasons AS text[]), CAST(:refused AS bigint[]))
""")


def by_reason(tx: Tx, *, since: datetime) -> dict[str, int]:
    """How many events of this tenant were refused since then, by reason."""
    rows = tx.execute(
        text("""
            SELECT reason, sum(rejected)::bigint AS rejected FROM ingest_rejections_hour
            WHERE tenant_id = :tenant AND bucket_hour > :since GROUP BY reason ORDER BY reason
        """),
        {"tenant": tx.tenant, "since": since - timedelta(hours=1)},
    )
    return {row.reason: row.rejected for row in rows}
