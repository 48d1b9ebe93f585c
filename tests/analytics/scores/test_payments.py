"""Claims that are paid in one commit: each as if it came alone, after those before it."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from flask.testing import FlaskClient
from sqlalchemy import text, update

from analytics.scores import catalog, payments, sources
from analytics.scores.actions import ActionClaim, PayloadDiffers, Payment, Verification
from analytics.scores.catalog import Terms
from app.settings import Settings
from tenants import settings as tenant_settings
from tenants.allowances import Taken
from tenants.db import owner_tx, tenant_tx, utcnow
from tenants.errors import DomainError
from tenants.throttle import State, TooMany
from tenants.users import User
from tests.citus import not_on_citus
from tests.people import user_of
from tests.service import eventually

NOW = utcnow()


@pytest.fixture
def user(client: FlaskClient, tenant: str) -> UUID:
    return UUID(user_of(client, tenant).id)


@pytest.fixture
def other(client: FlaskClient, tenant: str) -> UUID:
    return UUID(user_of(client, tenant).id)


def put(tenant: str, action: str = "post", **terms: Any) -> None:
    with tenant_tx(tenant) as tx:
        catalog.put(tx, action, Terms(**{"points": 10, **terms}), now=NOW)


def change_settings(tenant: str, **changes: Any) -> None:
    with tenant_tx(tenant) as tx:
        tenant_settings.change(tx, changes, now=NOW)


def claim(user_id: UUID, source: str | None = None, **more: Any) -> ActionClaim:
    action = more.pop("action", "post")
    return ActionClaim(user_id, action, source or f"test:{uuid4()}", Verification.CLIENT, **more)


def pay(tenant: str, *claims: ActionClaim) -> list[str | int]:
    """For each claim the score it made, "replay", or why it was refused."""
    with tenant_tx(tenant) as tx:
        paid = payments.pay_all(tx, claims, tenant_settings.read(tx)[0], room=0, now=NOW)
    return [shown(outcome) for outcome in paid.payments]


def shown(outcome: Payment | DomainError) -> str | int:
    if isinstance(outcome, DomainError):
        return outcome.code
    return "replay" if outcome.is_replay else outcome.score


def ledger_of(tenant: str) -> list[tuple[int, int, int]]:
    with owner_tx() as tx:
        rows = tx.execute(
            text("SELECT previous, delta, score FROM score_ledger WHERE tenant_id = :t ORDER BY id"), {"t": tenant}
        )
        return [(row.previous, row.delta, row.score) for row in rows]


def test_a_users_claims_of_one_commit_are_a_chain(tenant: str, user: UUID, other: UUID) -> None:
    put(tenant)
    put(tenant, "vote", points=3)
    assert pay(tenant, claim(user), claim(other), claim(user, action="vote"), claim(user)) == [10, 10, 13, 23]
    assert ledger_of(tenant) == [(0, 10, 10), (0, 10, 10), (10, 3, 13), (13, 10, 23)]
    assert pay(tenant, claim(user)) == [33]
    with owner_tx() as tx:
        row = tx.execute(
            text("""
                SELECT current_score, total_actions, (SELECT sum(points) FROM user_points_hour WHERE user_id = :u),
                       (SELECT count(*) FROM action_events WHERE user_id = :u)
                FROM users WHERE id = :u
            """),
            {"u": user},
        ).one()
    assert tuple(row) == (33, 4, 33, 4)


def test_the_same_source_twice_is_paid_once_in_one_commit_too(tenant: str, user: UUID, other: UUID) -> None:
    put(tenant)
    assert pay(tenant, claim(user, "s:1"), claim(user, "s:1"), claim(other, "s:1")) == [10, "replay", "payload_differs"]
    assert pay(tenant, claim(user, "s:1"), claim(other, "s:1")) == ["replay", "payload_differs"]
    assert ledger_of(tenant) == [(0, 10, 10)]


@pytest.mark.parametrize(
    ("terms", "outcomes"),
    [
        ({"daily_cap": 20}, [10, 20, "daily_cap_reached"]),
        ({"daily_limit": 1}, [10, "daily_limit_reached", "daily_limit_reached"]),
        ({"cooldown_s": 60}, [10, "cooldown", "cooldown"]),
        ({"once_per_object": True}, [10, "already_done", "already_done"]),
        ({"enabled": False}, ["unknown_action"] * 3),
        ({"requires_token": True}, ["action_token_required"] * 3),
    ],
)
def test_a_claim_counts_for_those_after_it(
    tenant: str, user: UUID, other: UUID, terms: dict[str, Any], outcomes: list[str | int]
) -> None:
    put(tenant, **terms)
    of_other = outcomes[:1]
    assert pay(tenant, claim(user), claim(user), claim(other), claim(user)) == [*outcomes[:2], *of_other, outcomes[2]]


def own(user_id: UUID) -> ActionClaim:
    """What a user claims."""
    return replace(claim(user_id, sources.of_action(user_id, str(uuid4()))), verification=Verification.SESSION)


def test_one_users_limit_stops_neither_others_nor_replays_nor_the_tenants_app(
    tenant: str, user: UUID, other: UUID
) -> None:
    put(tenant)
    change_settings(tenant, limits={"score_updates_per_minute": 2})
    first = own(user)
    claims = [claim(user), first, own(user), own(user), own(other), own(user), first, claim(user)]
    assert pay(tenant, *claims) == [10, 20, 30, "rate_limited", 10, "rate_limited", "replay", 40]
    assert pay(tenant, own(user), claim(user), own(other)) == ["rate_limited", 50, 20], "in later commits too"


def test_an_apps_claims_above_what_the_tenant_may_have_are_refused_with_a_wait(tenant: str, user: UUID) -> None:
    put(tenant)
    state = State("app-actions", limit=2, window_s=60, remaining=0, resets_in_s=7, is_allowed=False)
    claims = [claim(user, "s:1"), own(user), claim(user), claim(user), claim(user, "s:1"), own(user)]
    with tenant_tx(tenant) as tx:
        settings_ = tenant_settings.read(tx)[0]
        paid = payments.pay_all(tx, claims, settings_, room=0, now=NOW, app_actions=Taken(2, state)).payments
    assert [shown(one) for one in paid] == [10, 20, 30, "rate_limited", "replay", 40]
    assert isinstance(paid[3], TooMany)
    assert paid[3].retry_after_s == 7


def test_a_user_suspended_by_a_rule_gets_nothing_more_in_the_same_commit(tenant: str, user: UUID, other: UUID) -> None:
    put(tenant)
    change_settings(tenant, integrity={"points_per_hour": 15, "suspend_automatically": True})
    assert pay(tenant, claim(user), claim(user), claim(user), claim(other)) == [10, 20, "user_suspended", 10]
    assert pay(tenant, claim(user)) == ["user_suspended"]


def test_claims_are_paid_again_from_the_end_of_a_suspension_on(tenant: str, user: UUID) -> None:
    put(tenant)
    for until, paid in ((None, "user_suspended"), (NOW + timedelta(seconds=1), "user_suspended"), (NOW, 10)):
        with tenant_tx(tenant) as tx:
            values = {"suspended_at": NOW - timedelta(days=1), "suspended_until": until}
            tx.execute(update(User).where(User.id == user).values(**values))
        assert pay(tenant, claim(user)) == [paid], until


def test_unknown_users_and_actions_are_refused_by_themselves(tenant: str, user: UUID) -> None:
    put(tenant)
    claims = [claim(uuid4()), claim(user, action="none"), claim(user)]
    assert pay(tenant, *claims) == ["user_suspended", "unknown_action", 10]
    assert pay(tenant) == []


@not_on_citus
def test_a_source_that_another_transaction_pays_to_another_user_is_paid_once(
    tenant: str, user: UUID, other: UUID, settings: Settings
) -> None:
    put(tenant)
    watching = psycopg.connect(settings.database_url or "", autocommit=True)
    with watching, ThreadPoolExecutor(1) as pool:

        def one_waits() -> bool:
            row = watching.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
            ).fetchone()
            return row is not None and row[0] == 1

        with tenant_tx(tenant) as tx:
            settings_ = tenant_settings.read(tx)[0]
            (first,) = payments.pay_all(tx, [claim(user, "s:1")], settings_, room=0, now=NOW).payments
            second = pool.submit(pay, tenant, claim(other), claim(other, "s:1"), claim(other))
            eventually(one_waits)
        assert shown(first) == 10
        assert second.result(30) == [10, PayloadDiffers.code, 20]
    assert sorted(ledger_of(tenant)) == [(0, 10, 10), (0, 10, 10), (10, 10, 20)]
