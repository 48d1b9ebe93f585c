"""The same body is the same claim, however it came in."""

from datetime import UTC, datetime
from uuid import UUID, uuid4

from analytics.scores.actions import Payment
from app.http.score_claims import payment_answer, update_claim
from tenants.throttle import State

USER, ACTION = uuid4(), UUID("0f9b2a34-6f5e-4a55-8a53-1d0a3a6a0001")
BODY = {"action_id": ACTION, "action_type": "post", "timestamp": datetime(2026, 1, 1, tzinfo=UTC)}


def test_a_field_that_is_missing_is_the_same_as_none() -> None:
    first = update_claim(USER, BODY, ip=None, agent=None)
    second = update_claim(USER, {**BODY, "wanted": None}, ip="127.0.0.1", agent="x")
    assert first.payload_hash == second.payload_hash
    assert first.source == second.source == f"action:{USER}:{ACTION}"
    assert update_claim(USER, {**BODY, "wanted": 3}, ip=None, agent=None).payload_hash != first.payload_hash


def test_a_new_payment_has_the_state_of_its_limit_and_a_replay_has_none() -> None:
    state = State(name="scores", limit=10, window_s=60, remaining=9, resets_in_s=60, is_allowed=True)
    event = uuid4()
    new = Payment(10, 10, 1, event, is_replay=False, limit=state)
    body = {"score": 10, "delta": 10, "rank": 1, "event_id": event}
    assert payment_answer(new) == (body, state.headers())
    assert payment_answer(Payment(10, 10, 1, event, is_replay=True)) == (body, {})
