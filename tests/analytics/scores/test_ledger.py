"""The ledger is append-only (P6)."""

import pytest
from sqlalchemy import text
from sqlalchemy.exc import ProgrammingError

from tenants.db import tenant_tx
from tests.analytics.scores.conftest import UPDATE, claim_of
from tests.people import Caller


def test_the_ledger_cannot_be_changed_by_the_role_of_requests(player: Caller, tenant: str) -> None:
    player("POST", UPDATE, json=claim_of())
    for statement in (
        "UPDATE score_ledger SET delta = 0 WHERE tenant_id = :t",
        "DELETE FROM score_ledger WHERE tenant_id = :t",
        "UPDATE action_events SET points = 0 WHERE tenant_id = :t",
        "DELETE FROM action_events WHERE tenant_id = :t",
        "TRUNCATE score_ledger",
    ):
        with pytest.raises(ProgrammingError, match="permission denied"), tenant_tx(tenant) as tx:
            tx.execute(text(statement), {"t": tenant})
