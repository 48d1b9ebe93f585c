"""The demo's quests: created once, in every state; then played by its readers within the rules of quests."""

import random
import urllib.error
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta
from email.message import Message
from io import BytesIO
from typing import Any

import pytest
from flask.testing import FlaskClient
from sqlalchemy import text

from analytics.scores import integrity
from app.run import demo_quests
from app.run.demo_quests import FIRST_QUESTS, KEPT, KINDS, MAX_OPEN, QUESTS, REST, Players
from tenants import settings as tenant_settings
from tenants.db import tenant_tx, utcnow
from tenants.settings import Quests
from tenants.users import Role
from tests.people import Caller, client_of, user_of

READERS = 40
PAGES = ["Deploying PostgreSQL", "Notes on writing well"]


class CallerApi:
    """The API through a test client; raises as `urllib` does."""

    def __init__(self, caller: Caller) -> None:
        self.caller = caller
        self.written = 0
        self.refused: list[int] = []
        # The call that fails, as if the service were away; None: none.
        self.fails_at: int | None = None

    def call(self, method: str, path: str, body: Any = None) -> Any:
        if method != "GET":
            if self.written == self.fails_at:
                raise urllib.error.URLError("interrupted")
            self.written += 1
        answer = self.caller(method, path, **({"json": body} if body is not None else {}))
        if answer.status_code >= 400:
            self.refused.append(answer.status_code)
            raise urllib.error.HTTPError(path, answer.status_code, answer.text, Message(), BytesIO(answer.data))
        return answer.get_json()


@pytest.fixture
def api(client: FlaskClient, tenant: str) -> CallerApi:
    return CallerApi(client_of(client, tenant))


@pytest.fixture
def players(api: CallerApi) -> Players:
    return Players(api, PAGES, READERS, random.Random("demo"))


def all_quests(api: CallerApi) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = api.call("GET", f"{QUESTS}?limit=100")["items"]
    return items


def statuses(api: CallerApi) -> Counter[str]:
    return Counter(quest["status"] for quest in all_quests(api))


def later() -> datetime:
    """When everything that was done until now has rested."""
    return utcnow() + 2 * REST


def change_settings(tenant: str, changes: dict[str, Any]) -> None:
    with tenant_tx(tenant) as tx:
        tenant_settings.change(tx, changes, now=utcnow())


def test_the_first_quests_are_in_every_state_and_some_wait_for_the_admin(
    api: CallerApi, client: FlaskClient, tenant: str
) -> None:
    demo_quests.seed(api)
    assert api.refused == []
    assert statuses(api) == {"OPEN": 5, "CLAIMED": 2, "PENDING_REVIEW": 3, "COMPLETE": 2, "DISPUTED": 1}
    quests = all_quests(api)
    assert {quest["title"] for quest in quests} == {first.title for first in FIRST_QUESTS}
    assert len({quest["creator"]["external_id"] for quest in quests}) == len(quests)
    admin = user_of(client, tenant, role=Role.ADMIN)
    assert len(admin("GET", f"{QUESTS}?to_attest=me").get_json()["items"]) == 3
    board = api.call("GET", "/api/v1/leaderboards?scope=users&metric=xp&window=7d")
    assert sum(row["value"] for row in board["items"]) in {0, 720}, "paid, whether or not a worker has seen it"
    with tenant_tx(tenant) as tx:
        assert tx.scalar(text("SELECT sum(delta) FROM score_ledger WHERE account = 'xp'")) == 720


def test_another_start_adds_nothing_whatever_became_of_the_first_quests(api: CallerApi) -> None:
    demo_quests.seed(api)
    before = all_quests(api)
    cancelled = next(quest for quest in before if quest["status"] == "OPEN")
    disputed = next(quest for quest in before if quest["status"] == "DISPUTED")
    api.call("POST", f"{QUESTS}/{cancelled['id']}/cancel")
    api.call("POST", f"{QUESTS}/{disputed['id']}/resolve", {"to": "OPEN", "reason": "another try"})
    before, api.written = all_quests(api), 0
    demo_quests.seed(api)
    assert (api.written, all_quests(api)) == (0, before)


@pytest.mark.parametrize("calls", [0, 1, 6, 14, 27])
def test_an_interrupted_start_is_completed_by_the_next(api: CallerApi, calls: int) -> None:
    api.fails_at = calls
    with pytest.raises(urllib.error.URLError):
        demo_quests.seed(api)
    api.fails_at = None
    demo_quests.seed(api)
    assert api.refused == []
    assert api.written == sum(1 + len(first.steps) for first in FIRST_QUESTS)
    assert {quest["title"]: quest["version"] for quest in all_quests(api)} == {
        first.title: 1 + len(first.steps) for first in FIRST_QUESTS
    }


def test_a_tenant_that_does_not_want_quests_gets_none(api: CallerApi, players: Players, tenant: str) -> None:
    change_settings(tenant, {"quests_enabled": False})
    demo_quests.seed(api)
    players.create(utcnow())
    players.claim(utcnow())
    assert set(api.refused) == {403}
    change_settings(tenant, {"quests_enabled": True})
    assert all_quests(api) == []


def test_what_is_refused_is_left_out_and_what_fails_is_raised(api: CallerApi, players: Players, tenant: str) -> None:
    change_settings(tenant, {"quests": {"require_if_match": True}})
    demo_quests.seed(api)
    assert statuses(api) == {"OPEN": len(FIRST_QUESTS)}
    players.claim(later())
    assert set(api.refused) == {428}
    api.fails_at = api.written
    with pytest.raises(urllib.error.URLError):
        players.claim(later())


def test_a_quest_of_readers_goes_from_offer_to_payment(
    api: CallerApi, players: Players, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo_quests, "KEPT", dict.fromkeys(KEPT, 0))
    steps: list[tuple[Callable[[datetime], None], str]] = [
        (players.create, "OPEN"),
        (players.claim, "CLAIMED"),
        (players.submit, "PENDING_REVIEW"),
        (players.attest, "COMPLETE"),
    ]
    for step, status in steps:
        step(later())
        (quest,) = all_quests(api)
        assert quest["status"] == status
    assert quest["title"] in {kind.title.format(page) for kind in KINDS for page in PAGES}
    full = api.call("GET", f"{QUESTS}/{quest['id']}")
    people = {person["external_id"] for person in (quest["creator"], quest["performer"])}
    assert len(people) == 2
    assert full["attestations"][0]["attester"]["external_id"] != quest["performer"]["external_id"]
    assert [reward["status"] for reward in full["rewards"]] == ["paid", "paid"]


def test_some_are_kept_and_what_has_just_changed_is_left_alone(api: CallerApi, players: Players) -> None:
    demo_quests.seed(api)
    before, api.written = all_quests(api), 0
    for step in (players.claim, players.submit, players.attest):
        step(utcnow())  # nothing has rested
    players.submit(later())  # two are claimed, and three submitted: so many are kept
    players.attest(later())
    assert (api.written, all_quests(api)) == (0, before)
    players.claim(later())  # five are open
    assert api.written == 1


def test_readers_submit_only_their_own_claims(
    api: CallerApi, players: Players, client: FlaskClient, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo_quests, "KEPT", dict.fromkeys(KEPT, 0))
    person = user_of(client, tenant)
    for user in (None, "ada"):
        players.create(utcnow())
        quest = next(quest for quest in all_quests(api) if quest["status"] == "OPEN")
        path = f"{QUESTS}/{quest['id']}/claim"
        assert (
            person("POST", path) if user is None else api.caller("POST", path, json={"user": user})
        ).status_code == 200
    for _ in range(5):
        players.submit(later())
    assert statuses(api) == {"CLAIMED": 2}


def test_many_steps_stay_within_the_budgets_and_bounds_and_make_no_ring(
    api: CallerApi, players: Players, tenant: str
) -> None:
    demo_quests.seed(api)
    for _ in range(120):
        players.take_step(now=later())
    assert set(api.refused) <= {409, 403}
    assert len(api.refused) < 10
    by_status = {
        status: len(api.call("GET", f"{QUESTS}?status={status}&limit=100")["items"])
        for status in ("OPEN", "CLAIMED", "PENDING_REVIEW", "COMPLETE")
    }
    assert KEPT["OPEN"] <= by_status["OPEN"] <= MAX_OPEN
    assert by_status["CLAIMED"] < 30
    assert by_status["PENDING_REVIEW"] < 30
    assert by_status["COMPLETE"] > 10
    limits = Quests()
    with tenant_tx(tenant) as tx:
        most = tx.execute(
            text("""
                SELECT count(*) AS quests, max(of_one) AS of_one, max(xp) AS xp FROM (
                    SELECT count(*) AS of_one, sum(reward_xp) AS xp FROM quests GROUP BY creator_id) c
            """)
        ).one()
        assert most.of_one < limits.quests_per_day
        assert most.xp < limits.xp_per_day
        assert integrity.list_(tx, state=None, after=None, limit=10) == []


def test_only_so_many_are_open(api: CallerApi, players: Players) -> None:
    for _ in range(MAX_OPEN + 3):
        players.create(utcnow())
    assert statuses(api) == {"OPEN": MAX_OPEN}
    assert all(datetime.fromisoformat(quest["expires_at"]) > utcnow() + timedelta(days=6) for quest in all_quests(api))
