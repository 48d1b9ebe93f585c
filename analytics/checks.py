"""`plaudit check`: whether everything of a tenant adds up, from the boards to the quests."""

from datetime import datetime

from analytics.boards import checking as boards
from analytics.boards.checking import Difference, Report
from analytics.quests import checking as quests
from tenants.db import tenant_tx


def check(tenant_id: str, *, now: datetime) -> Report:
    """Compare everything of one tenant: numbers, ledgers and boards, then what people did in quests."""
    report = boards.check(tenant_id, now=now)
    with tenant_tx(tenant_id) as tx:
        report.differences += [Difference(tenant_id, *found) for found in quests.differences(tx)]
    return report
