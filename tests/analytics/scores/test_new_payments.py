"""Payments before they are written: what the caller is told of them, and the call that writes them."""

from datetime import UTC, datetime
from uuid import uuid4

import pytest

from analytics.scores import new_payments
from analytics.scores.actions import ActionClaim, Verification
from analytics.scores.new_payments import NewPayment
from tenants.throttle import State

NOW = datetime(2026, 1, 31, 12, 34, 56, 789_123, tzinfo=UTC)
STATE = State("scores", limit=10, window_s=60, remaining=9, resets_in_s=60, is_allowed=True)


def new(verification: Verification = Verification.SESSION) -> NewPayment:
    claim = ActionClaim(uuid4(), "post", "s:1", verification, agent="a" * 600, metadata={})
    return NewPayment(claim, uuid4(), uuid4(), delta=10, score=30, once_key=None, limit=STATE, rank=3)


@pytest.mark.parametrize("is_replay", [False, True])
def test_a_replay_is_told_the_same_without_a_limit(is_replay: bool) -> None:
    paid = new()
    told = paid.payment(is_replay=is_replay)
    assert (told.score, told.delta, told.rank, told.event_id) == (30, 10, 3, paid.event_id)
    assert (told.limit, told.user_id) == (None if is_replay else STATE, paid.user_id)


def test_only_users_are_shown_ranks() -> None:
    assert [new(by).shows_rank for by in (Verification.SESSION, Verification.TOKEN, Verification.CLIENT)] == [
        True,
        True,
        False,
    ]


def test_there_is_a_value_for_each_parameter_and_one_for_each_payment() -> None:
    statement, values = new_payments.recording("t1", [new(), new()], now=NOW, at=NOW.replace(microsecond=789_000))
    assert statement.count("%s") == len(values)
    assert values[4] == NOW.replace(minute=0, second=0, microsecond=0), "the hour that they count in"
    assert [len(column) for column in values if isinstance(column, list)] == [2] * 10 + [0, 0]
    assert all(len(agent) == 512 for agent in values[18])
