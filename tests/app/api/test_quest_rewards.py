"""Rewards that could not be paid at once, for admins."""

import pytest
from flask.testing import FlaskClient

from tenants.users import Role
from tests.analytics.quests.questing import World, balances
from tests.analytics.quests.test_rewards import LOCKED, Broken
from tests.people import user_of

FAILED = "/api/v1/rewards/failed"


def test_an_admin_sees_what_is_owed_and_pays_it_once(
    client: FlaskClient, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Broken(monkeypatch, "xp", 2, LOCKED)
    world, admin, member = World(tenant), user_of(client, tenant, role=Role.ADMIN), user_of(client, tenant)
    performer, creator = world.person(), world.person()
    quest = world.done(creator, performer, creator)
    assert admin("GET", f"/api/v1/quests/{quest}").get_json()["rewards"][0]["status"] == "owed"
    (owed,) = admin("GET", f"{FAILED}?status=PENDING").get_json()["items"]
    assert (owed["reward_type"], owed["amount"], owed["attempt_count"]) == ("XP", 100, 1)
    path = f"{FAILED}/{owed['id']}/retry"
    assert member("GET", FAILED).status_code == member("POST", path).status_code == 403
    assert admin("POST", path).get_json()["status"] == "PENDING", "it failed again"
    paid = admin("POST", path).get_json()
    assert (paid["status"], paid["attempt_count"], paid["processed_by"]) == ("COMPLETED", 3, f"user:{admin.id}")
    again = admin("POST", path)
    assert (again.status_code, again.get_json()["code"]) == (409, "reward_completed")
    assert admin("POST", f"{FAILED}/{quest}/retry").status_code == 404
    assert balances(world, performer) == (0, 100, 5)
    assert admin("GET", f"/api/v1/quests/{quest}").get_json()["rewards"][0]["status"] == "paid"
