"""The audit: every action as it was received, newest first."""

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from flask.testing import FlaskClient

from analytics.scores import audit, catalog
from analytics.scores.actions import ActionClaim, Payment, Verification
from analytics.scores.catalog import Terms
from tenants.db import tenant_tx, utcnow
from tests.analytics.scores.conftest import pay_one
from tests.people import user_of

# The audit has partitions for this month and the next ones.
NOW = utcnow()


@pytest.fixture
def user_id(client: FlaskClient, tenant: str) -> UUID:
    return UUID(user_of(client, tenant).id)


def pay(tenant: str, user_id: UUID, *, points: int = 10, at: datetime = NOW, **claim: Any) -> Payment:
    with tenant_tx(tenant) as tx:
        catalog.put(tx, "post", Terms(points=points), now=NOW)
        claimed = ActionClaim(user_id, "post", f"test:{uuid4()}", Verification.SESSION, **claim)
        return pay_one(tx, claimed, now=at)


def test_a_line_has_what_was_claimed_and_what_was_paid(tenant: str, user_id: UUID) -> None:
    claim: dict[str, Any] = {
        "object": "page:1",
        "ip": "10.0.0.1",
        "agent": "a" * 600,
        "metadata": {"k": [1]},
        "client_time": NOW,
    }
    paid = pay(tenant, user_id, points=7, **claim)
    with tenant_tx(tenant) as tx:
        (line,) = audit.of_user(tx, user_id, before=None, limit=10)
        assert (line.id, line.action_type, line.points, line.object) == (paid.event_id, "post", 7, "page:1")
        assert (line.verification, line.source[:5], line.client_time) == ("session", "test:", NOW)
        assert (str(line.ip), line.metadata_, line.client_info) == ("10.0.0.1", {"k": [1]}, None)
        assert line.agent == "a" * audit.MAX_AGENT_CHARS


def test_a_users_lines_are_listed_newest_first_from_a_position_on(
    tenant: str, user_id: UUID, client: FlaskClient
) -> None:
    pay(tenant, UUID(user_of(client, tenant).id))
    for seconds, points in ((1, 1), (3, 3), (2, 2), (2, 2)):
        pay(tenant, user_id, points=points, at=NOW + timedelta(seconds=seconds))
    with tenant_tx(tenant) as tx:
        lines = audit.of_user(tx, user_id, before=None, limit=10)
        assert [line.points for line in lines] == [3, 2, 2, 1]
        after_the_second = audit.of_user(tx, user_id, before=(lines[1].received_at, lines[1].id), limit=10)
        assert [line.id for line in after_the_second] == [line.id for line in lines[2:]]
        assert len(audit.of_user(tx, user_id, before=None, limit=3)) == 3
