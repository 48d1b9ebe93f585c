"""The audit: every action as it was received, newest first."""

from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import pytest
from flask.testing import FlaskClient
from sqlalchemy import text

from analytics.scores import audit, catalog
from analytics.scores.actions import ActionClaim, Payment, Verification
from analytics.scores.audit import Filter
from analytics.scores.catalog import Terms
from tenants.db import owner_tx, tenant_tx, utcnow
from tests.analytics.scores.conftest import pay_one
from tests.people import user_of
from tests.plans import assert_read_in_order, assert_reads_few, plans_of

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


FILL = text("""
    INSERT INTO action_events (tenant_id, received_at, id, user_id, action_type, source, payload_hash, verification,
                               points)
    SELECT :tenant, date_trunc('second', CAST(:start AS timestamptz)) + n / 3 * interval '2 minutes', gen_random_uuid(),
           (CAST(:users AS uuid[]))[1 + n % 20], 'type-' || n % 7, 's', '', 'session', n
    FROM generate_series(0, :many - 1) n
""")
MANY = 20_000
USERS = [uuid4() for _ in range(20)]


@pytest.fixture
def many(tenant: str) -> str:
    """A tenant with an audit of nine days and more, three lines at each time: in one partition, or in two."""
    with owner_tx() as tx:
        tx.execute(FILL, {"tenant": tenant, "start": NOW, "users": USERS, "many": MANY})
        tx.execute(text("ANALYZE action_events"))
    return tenant


def points(tenant: str, wanted: Filter, *, limit: int = 100) -> list[int]:
    """All of a list, slice by slice."""
    found: list[int] = []
    before = None
    for _ in range(MANY):
        with tenant_tx(tenant) as tx:
            listed = audit.list_(tx, wanted, before=before, limit=limit)
        assert len(listed.lines) <= limit
        found += [line.points for line in listed.lines]
        before = listed.next
        if before is None:
            return found
    raise AssertionError("a list that does not end")


def test_all_lines_are_listed_by_user_type_and_time_in_the_order_of_an_index(
    many: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = NOW.replace(microsecond=0)
    hour = Filter(start=start + timedelta(hours=1), end=start + timedelta(hours=2))
    in_hour = set(range(90, 180))
    for limit in (1, 7, 100):
        assert set(points(many, hour, limit=limit)) == in_hour
    newest = points(many, hour)
    assert len(newest) == 90, "none twice"
    assert [one // 3 for one in newest] == sorted((one // 3 for one in in_hour), reverse=True)
    of_user = replace(hour, user_id=USERS[3])
    assert points(many, of_user) == sorted((one for one in in_hour if one % 20 == 3), reverse=True)
    of_type = replace(hour, action_type="type-2")
    assert sorted(points(many, of_type, limit=2)) == [one for one in sorted(in_hour) if one % 7 == 2]
    assert points(many, Filter(action_type="nothing")) == []

    alone = [Filter(), Filter(user_id=USERS[3]), Filter(action_type="type-2")]
    for wanted in [*alone, *(replace(one, start=start + timedelta(days=1)) for one in alone)]:
        for before in (None, (start + timedelta(days=5), UUID(int=2**127))):
            with tenant_tx(many) as tx:
                (plan,) = plans_of(tx, partial(audit.list_, tx, wanted, before=before, limit=20))
            assert_read_in_order(plan, most=21)

    monkeypatch.setattr(audit, "MAX_SCANNED", 5)
    both = Filter(USERS[3], "type-2")
    with tenant_tx(many) as tx:
        first = audit.list_(tx, both, before=None, limit=20)
        assert (len(first.lines) < 2, first.next is not None) == (True, True), "a bounded part, which continues"
        for plan in plans_of(tx, partial(audit.list_, tx, both, before=None, limit=20)):
            assert_reads_few(plan, most=5)
    monkeypatch.setattr(audit, "MAX_SCANNED", 50)
    assert points(many, replace(both, end=hour.end), limit=2) == [
        one for one in range(179, -1, -1) if one % 20 == 3 and one % 7 == 2
    ]
