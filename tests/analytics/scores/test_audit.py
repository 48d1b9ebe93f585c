"""The audit: every action as it was received, newest first."""

from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

from analytics.scores import audit
from analytics.scores.actions import ActionClaim, Verification
from tenants.db import Tx, tenant_tx, utcnow


def write(tx: Tx, user_id: UUID, *, points: int = 10, seconds: int = 0, **claim: Any) -> UUID:
    event_id = uuid4()
    claimed = ActionClaim(user_id, "post", f"test:{event_id}", Verification.SESSION, **claim)
    audit.write(tx, claimed, event_id, points, now=NOW + timedelta(seconds=seconds))
    return event_id


# The audit has partitions for this month and the next ones.
NOW = utcnow()


def test_a_line_has_what_was_claimed_and_what_was_paid(tenant: str) -> None:
    user_id = uuid4()
    with tenant_tx(tenant) as tx:
        event_id = write(
            tx, user_id, points=7, object="page:1", ip="10.0.0.1", agent="a" * 600, metadata={"k": [1]}, client_time=NOW
        )
        (line,) = audit.of_user(tx, user_id, before=None, limit=10)
        assert (line.id, line.action_type, line.points, line.object) == (event_id, "post", 7, "page:1")
        assert (line.verification, line.source, line.client_time) == ("session", f"test:{event_id}", NOW)
        assert (str(line.ip), line.metadata_, line.client_info) == ("10.0.0.1", {"k": [1]}, None)
        assert line.agent == "a" * audit.MAX_AGENT_CHARS


def test_a_users_lines_are_listed_newest_first_from_a_position_on(tenant: str) -> None:
    user_id = uuid4()
    with tenant_tx(tenant) as tx:
        write(tx, uuid4())
        for seconds, points in ((1, 1), (3, 3), (2, 2), (2, 2)):
            write(tx, user_id, points=points, seconds=seconds)
        lines = audit.of_user(tx, user_id, before=None, limit=10)
        assert [line.points for line in lines] == [3, 2, 2, 1]
        after_the_second = audit.of_user(tx, user_id, before=(lines[1].received_at, lines[1].id), limit=10)
        assert [line.id for line in after_the_second] == [line.id for line in lines[2:]]
        assert len(audit.of_user(tx, user_id, before=None, limit=3)) == 3
