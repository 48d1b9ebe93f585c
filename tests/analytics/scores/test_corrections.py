"""Corrections: ledger entries by admins, which count for nothing but the balance and the boards."""

from datetime import timedelta
from uuid import UUID

import pytest

from analytics import checks
from analytics.boards import projection
from analytics.metrics import POINTS, REPUTATION, XP, Metric
from analytics.scores import corrections
from analytics.scores.corrections import BelowZero, Corrected
from analytics.scores.ledger import TooHigh
from tenants.db import tenant_tx, utcnow
from tenants.errors import DomainError, Invalid
from tests.analytics.scores.conftest import UPDATE, claim_of, entries, pay
from tests.people import Caller


def correct(player: Caller, delta: int, metric: Metric = POINTS, reason: str = "a mistake") -> Corrected:
    with tenant_tx(player.tenant) as tx:
        return corrections.correct(tx, UUID(player.id), metric, delta, reason=reason, by="test", now=utcnow())


def board(caller: Caller, window: str, metric: str) -> list[int]:
    path = f"/api/v1/leaderboards?scope=users&window={window}&metric={metric}"
    return [row["value"] for row in caller("GET", path).get_json()["items"]]


def test_boards_and_checks_follow_in_every_account(player: Caller, tenant: str) -> None:
    pay(tenant, player.id, 100, utcnow() - timedelta(days=3))
    for metric, delta, balance in ((POINTS, -30, 70), (POINTS, 5, 75), (XP, 7, 7), (XP, -7, 0), (REPUTATION, 1, 1)):
        assert correct(player, delta, metric).score == balance
    projection.project_all(tenant, now=utcnow)
    assert checks.check(tenant, now=utcnow()).differences == []
    assert board(player, "all", "points") == board(player, "7d", "points") == [75]
    assert board(player, "1d", "points") == [], "today there was less than nothing"
    assert (board(player, "all", "xp"), board(player, "all", "reputation")) == ([], [1])


@pytest.mark.parametrize(
    ("delta", "reason", "error"),
    [
        (-11, "a mistake", BelowZero),
        (2**53, "a mistake", TooHigh),
        (2**53 + 1, "a mistake", Invalid),
        (0, "a mistake", Invalid),
        (1, "no", Invalid),
        (1, "  no  ", Invalid),
        (1, "x" * 501, Invalid),
    ],
)
def test_what_cannot_be_corrected_changes_nothing(
    player: Caller, tenant: str, delta: int, reason: str, error: type[DomainError]
) -> None:
    pay(tenant, player.id, 10, utcnow())
    with pytest.raises(error):
        correct(player, delta, reason=reason)
    assert entries(tenant, player.id) == [(0, 10, 10)]


def test_a_correction_counts_for_no_limit_no_cap_and_no_flag_and_is_not_reversed(
    admin: Caller, player: Caller, tenant: str
) -> None:
    admin("PUT", "/api/v1/actions/catalog/post", json={"points": 10, "daily_cap": 30})
    limits = {"limits": {"score_updates_per_minute": 3}, "integrity": {"points_per_hour": 25}}
    admin("PATCH", "/api/v1/settings", json=limits)
    for _ in range(5):
        correct(player, 1000)
    correct(player, -1000)
    for _ in range(2):
        assert player("POST", UPDATE, json=claim_of()).status_code == 200
    assert admin("GET", "/api/v1/integrity/flags").get_json()["items"] == []
    assert player("POST", UPDATE, json=claim_of()).status_code == 200
    assert player("POST", UPDATE, json=claim_of()).get_json()["code"] == "daily_cap_reached"
    (flag,) = admin("GET", "/api/v1/integrity/flags").get_json()["items"]
    path = f"/api/v1/integrity/flags/{flag['id']}/resolve"
    assert admin("POST", path, json={"action": "reverse"}).get_json()["reversed_entries"] == 3
    assert admin("GET", f"/api/v1/users/{player.id}").get_json()["score"] == 4000
