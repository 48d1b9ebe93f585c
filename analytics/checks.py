"""`plaudit check`: whether everything of a tenant adds up, from the boards to the quests."""

from datetime import datetime

from analytics.boards import checking as boards
from analytics.boards import user_numbers
from analytics.boards.checking import Difference, Report
from analytics.ingest import unknown_addresses, visitors
from analytics.quests import checking as quests
from tenants.db import tenant_tx


def check(tenant_id: str, *, now: datetime) -> Report:
    """Compare everything of one tenant: numbers, ledgers, boards, how users are shown, quests, addresses, visitors."""
    report = boards.check(tenant_id, now=now)
    with tenant_tx(tenant_id) as tx:
        for part in (user_numbers, quests, unknown_addresses):
            report.differences += [Difference(tenant_id, *found) for found in part.differences(tx)]
        report.differences += [Difference(tenant_id, *found) for found in visitors.differences(tx, now=now)]
    return report
