"""`daily_cap` (points a day) and `daily_limit` (times a day) of an action: refused whole, by UTC days."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from flask.testing import FlaskClient
from sqlalchemy import text

from analytics.scores import catalog, integrity
from analytics.scores.actions import ActionClaim, Verification
from analytics.scores.catalog import Terms
from analytics.scores.integrity import Rule, Verdict
from tenants.db import owner_tx, tenant_tx, utcnow
from tenants.errors import DomainError
from tests.analytics.scores.conftest import pay_one
from tests.people import Caller, client_of, user_of

UPDATE = "/api/v1/scores/update"
CAP, LIMIT = "daily_cap_reached", "daily_limit_reached"
# The audit has partitions for this month and the next ones.
NOON = utcnow().replace(hour=12, minute=0, second=0, microsecond=0)

Act = Callable[..., str]


@pytest.fixture
def player(client: FlaskClient, tenant: str) -> Caller:
    return user_of(client, tenant)


@pytest.fixture
def act(tenant: str, player: Caller) -> Act:
    """The user does `post` at a time, for all of its points or fewer by an action token: "paid", or why not."""

    def act(at: datetime = NOON, *, points: int | None = None) -> str:
        verification = Verification.CLIENT if points is None else Verification.TOKEN
        source = f"test:{uuid4()}"
        claim = ActionClaim(UUID(player.id), "post", source, verification, wanted_points=points)
        try:
            with tenant_tx(tenant) as tx:
                pay_one(tx, claim, now=at)
        except DomainError as refused:
            return refused.code
        return "paid"

    return act


def put(tenant: str, **terms: Any) -> None:
    with tenant_tx(tenant) as tx:
        catalog.put(tx, "post", Terms(**{"points": 10, **terms}), now=NOON)


def paid_to(tenant: str, user: str) -> tuple[int, int, int, int, int]:
    """Entries, their sum, score, actions, audit lines."""
    with owner_tx() as tx:
        row = tx.execute(
            text("""
                SELECT (SELECT count(*) FROM score_ledger l WHERE l.tenant_id = u.tenant_id AND l.user_id = u.id),
                       (SELECT sum(delta) FROM score_ledger l WHERE l.tenant_id = u.tenant_id AND l.user_id = u.id),
                       current_score, total_actions,
                       (SELECT count(*) FROM action_events e WHERE e.tenant_id = u.tenant_id AND e.user_id = u.id)
                FROM users u WHERE u.tenant_id = :tenant AND u.id = :user
            """),
            {"tenant": tenant, "user": user},
        ).one()
        return tuple(int(number or 0) for number in row)  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("cap", "outcomes"),
    [
        (29, ["paid", "paid", CAP]),  # the third would pass it by one point: refused whole
        (30, ["paid", "paid", "paid", CAP]),  # exactly at the cap
        (31, ["paid", "paid", "paid", CAP]),  # below the cap, but not by an action's points
        (40, ["paid", "paid", "paid", "paid", CAP]),
    ],
)
def test_the_cap_is_points_a_day(tenant: str, act: Act, cap: int, outcomes: list[str]) -> None:
    put(tenant, daily_cap=cap)
    assert [act() for _ in outcomes] == outcomes


@pytest.mark.parametrize("limit", [1, 3])
def test_the_limit_is_times_a_day(tenant: str, act: Act, limit: int) -> None:
    put(tenant, daily_limit=limit)
    assert [act() for _ in range(limit + 2)] == ["paid"] * limit + [LIMIT, LIMIT]


def test_fewer_points_may_fit_below_the_cap_and_each_is_one_time(tenant: str, act: Act) -> None:
    put(tenant, daily_cap=25)
    assert [act(), act(), act(), act(points=6), act(points=5), act(points=1)] == ["paid", "paid", CAP, CAP, "paid", CAP]
    put(tenant, daily_limit=4)
    assert [act(points=1), act(points=1)] == ["paid", LIMIT]


@pytest.mark.parametrize(
    ("cap", "limit", "refused"),
    [(20, 3, CAP), (30, 2, LIMIT), (29, 2, LIMIT), (20, 2, LIMIT)],
)
def test_with_both_set_either_refuses(tenant: str, act: Act, cap: int, limit: int, refused: str) -> None:
    put(tenant, daily_cap=cap, daily_limit=limit)
    assert [act(), act(), act()] == ["paid", "paid", refused]


@pytest.mark.parametrize(("terms", "refused"), [({"daily_cap": 10}, CAP), ({"daily_limit": 1}, LIMIT)])
def test_a_day_ends_at_midnight_utc(tenant: str, act: Act, terms: dict[str, int], refused: str) -> None:
    put(tenant, **terms)
    midnight = NOON.replace(hour=0) + timedelta(days=1)
    moment = timedelta(milliseconds=1)
    assert [act(midnight - moment), act(midnight - moment)] == ["paid", refused]
    assert [act(midnight), act(midnight), act(midnight + timedelta(hours=23))] == ["paid", refused, refused]


@pytest.mark.parametrize(("terms", "refused"), [({"daily_cap": 15}, CAP), ({"daily_limit": 1}, LIMIT)])
def test_what_is_refused_changes_nothing(
    tenant: str, player: Caller, act: Act, terms: dict[str, int], refused: str
) -> None:
    put(tenant, **terms)
    assert act() == "paid"
    before = paid_to(tenant, player.id)
    assert before == (1, 10, 10, 1, 1)
    assert act() == refused
    assert paid_to(tenant, player.id) == before


def test_other_actions_and_other_users_have_their_own_day(
    client: FlaskClient, tenant: str, player: Caller, act: Act
) -> None:
    put(tenant, daily_cap=10, daily_limit=1)
    with tenant_tx(tenant) as tx:
        catalog.put(tx, "other", Terms(points=100), now=NOON)
        other = ActionClaim(UUID(player.id), "other", source="test:other", verification=Verification.CLIENT)
        pay_one(tx, other, now=NOON)
        another_user = ActionClaim(
            UUID(user_of(client, tenant).id), "post", source="test:user", verification=Verification.CLIENT
        )
        pay_one(tx, another_user, now=NOON)
    assert [act(), act()] == ["paid", LIMIT]


@pytest.mark.parametrize(("terms", "refused"), [({"daily_cap": 10}, CAP), ({"daily_limit": 1}, LIMIT)])
def test_a_payment_taken_back_leaves_no_room_on_its_day(
    tenant: str, player: Caller, act: Act, terms: dict[str, int], refused: str
) -> None:
    """A reversal says that it should not have been paid: it is no second chance to do it."""
    put(tenant, **terms)
    assert act() == "paid"
    take_back(tenant, player)
    assert paid_to(tenant, player.id)[2] == 0
    assert act() == refused
    assert act(NOON + timedelta(days=1)) == "paid"


def take_back(tenant: str, user: Caller) -> None:
    """As an admin does who finds the user's points suspicious."""
    with tenant_tx(tenant) as tx:
        integrity.raise_flag(tx, UUID(user.id), Rule.POINTS_PER_HOUR, {}, now=NOON)
        (flag,) = integrity.list_(tx, state=None, after=None, limit=2)
        resolved = integrity.resolve(tx, flag.id, Verdict.REVERSE, by="test", note=None, now=NOON)
        assert resolved.reversed_entries == 1


@pytest.fixture
def admin(client: FlaskClient, tenant: str) -> Caller:
    return client_of(client, tenant)


@pytest.fixture
def at_noon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests that pay are received at noon: no test runs across midnight."""
    for module in ("api.scores", "api.events", "http.score_claims"):
        monkeypatch.setattr(f"app.{module}.utcnow", lambda: NOON)


@pytest.mark.usefixtures("at_noon")
@pytest.mark.parametrize(
    ("terms", "code", "numbers"),
    [({"daily_cap": 15}, CAP, ("15 points", "10 were paid", "add 10")), ({"daily_limit": 1}, LIMIT, ("1 times",))],
)
def test_the_answer_says_why_and_until_when(
    admin: Caller, player: Caller, terms: dict[str, int], code: str, numbers: tuple[str, ...]
) -> None:
    made = admin("PUT", "/api/v1/actions/catalog/post", json={"points": 10, **terms})
    assert made.get_json() | terms == made.get_json()

    def send() -> Any:
        claim = {"actionId": str(uuid4()), "actionType": "post", "timestamp": NOON.isoformat()}
        return player("POST", UPDATE, json=claim)

    assert send().status_code == 200
    refused = send()
    assert (refused.status_code, refused.get_json()["code"]) == (409, code)
    assert refused.headers["Retry-After"] == str(12 * 60 * 60)
    assert [said for said in numbers if said not in refused.get_json()["detail"]] == []


@pytest.mark.usefixtures("at_noon")
def test_in_a_batch_each_item_is_paid_or_rejected_by_itself(admin: Caller) -> None:
    admin("PUT", "/api/v1/actions/catalog/capped", json={"points": 10, "daily_cap": 25})
    admin("PUT", "/api/v1/actions/catalog/limited", json={"points": 1, "daily_limit": 1})
    events = [
        {"type": "action", "action_type": kind, "user": user}
        for kind, user in [("capped", "ada")] * 3 + [("limited", "ada")] * 2 + [("capped", "bob"), ("limited", "bob")]
    ]
    answer = admin("POST", "/api/v1/events", json={"events": events}).get_json()
    assert (answer["accepted"], answer["duplicates"]) == (5, 0)
    assert [(item["index"], item["code"]) for item in answer["rejected"]] == [(2, "limited"), (4, "limited")]
    capped, limited = (item["detail"] for item in answer["rejected"])
    assert "25 points a day" in capped
    assert "1 times a day" in limited
    scores = [admin("GET", f"/api/v1/users/ext:{user}").get_json()["score"] for user in ("ada", "bob")]
    assert scores == [21, 11]
