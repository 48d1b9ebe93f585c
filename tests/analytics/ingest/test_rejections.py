"""Counts of rejected events, as a tenant's admins see them."""

from analytics.ingest import rejections, writes
from analytics.ingest.writes import WriteRequest
from analytics.windows import HOUR
from tenants.db import tenant_tx, utcnow


def test_rejections_are_added_up_by_reason(tenant: str) -> None:
    now = utcnow()
    for at, rejected in ((now - HOUR, {"invalid": 2, "too_old": 1}), (now, {"invalid": 3}), (now, {"invalid": 4})):
        with tenant_tx(tenant) as tx:
            writes.apply(tx, WriteRequest(tenant, [], at, rejected=rejected))
    with tenant_tx(tenant) as tx:
        assert rejections.by_reason(tx, since=now - HOUR) == {"invalid": 9, "too_old": 1}
        assert rejections.by_reason(tx, since=now) == {"invalid": 7}
        assert rejections.by_reason(tx, since=now + 2 * HOUR) == {}
