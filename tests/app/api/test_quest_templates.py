"""Templates and categories over HTTP: for everybody to read, for admins to change."""

from flask.testing import FlaskClient

from tenants.users import Role
from tests.analytics.quests.questing import OFFER, World
from tests.people import user_of

TEMPLATES, CATEGORIES = "/api/v1/quest-templates", "/api/v1/quest-categories"


def test_templates(client: FlaskClient, tenant: str, other_tenant: str) -> None:
    admin, member = user_of(client, tenant, role=Role.ADMIN), user_of(client, tenant)
    created = admin("POST", TEMPLATES, json={**OFFER, "tags": ["docs", "docs "]})
    assert (created.status_code, created.get_json()["tags"]) == (201, ["docs"])
    path = f"{TEMPLATES}/{created.get_json()['id']}"
    assert member("GET", path).get_json()["title"] == OFFER["title"]
    assert [one["id"] for one in member("GET", TEMPLATES).get_json()["items"]] == [created.get_json()["id"]]
    changed = admin("PUT", path, json={**OFFER, "title": "A better title"}).get_json()
    assert (changed["title"], changed["tags"]) == ("A better title", [])
    assert admin("POST", TEMPLATES, json={**OFFER, "reward_xp": 9}).status_code == 422
    for method in ("PUT", "DELETE"):
        assert member(method, path, json=OFFER).status_code == 403
    assert user_of(client, other_tenant)("GET", path).status_code == 404
    assert admin("DELETE", path).status_code == 204
    assert admin("DELETE", path).status_code == 404


def test_categories(client: FlaskClient, tenant: str) -> None:
    admin, member, world = user_of(client, tenant, role=Role.ADMIN), user_of(client, tenant), World(tenant)
    world.create(world.person(), tags=["docs"])
    assert admin("PUT", f"{CATEGORIES}/docs", json={"name": "Documentation"}).status_code == 204
    (category,) = member("GET", CATEGORIES).get_json()["items"]
    assert category == {"tag": "docs", "name": "Documentation", "description": None, "quests": 1}
    assert admin("PUT", f"{CATEGORIES}/{'x' * 33}", json={"name": "Too long"}).status_code == 422
    assert member("PUT", f"{CATEGORIES}/docs", json={"name": "Mine"}).status_code == 403
    assert admin("DELETE", f"{CATEGORIES}/docs").status_code == 204
    assert admin("DELETE", f"{CATEGORIES}/docs").status_code == 404
