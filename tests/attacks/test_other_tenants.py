"""Every route, walked with one tenant's credentials and another's identifiers: nothing is seen, nothing changes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient
from sqlalchemy import text

from analytics.quests import rewards
from analytics.quests.rewards import Reward
from app.http.rights import Access, declared
from tenants.db import owner_tx, tenant_tx, utcnow
from tenants.users import Role
from tests.analytics.quests.questing import World
from tests.beacons import send
from tests.people import Caller, client_of, user_of


@dataclass
class Victim:
    """What the other tenant has, by the names routes use."""

    tenant: str
    client_id: str
    key_id: str
    token_id: str
    user: str
    session_id: str
    action_token: str
    flag_id: str
    quest_id: str
    template_id: str
    reward_id: str
    page: str = "victim-page"
    unknown: str = "https://victim.example/unknown"


TEMPLATE = {"title": "Stolen", "description": "of another tenant", "reward_xp": 10, "reward_reputation": 1}
Case = Callable[[Victim], dict[str, Any]]

# For each route that takes an identifier: how to name the victim's thing. None: it names nobody's thing.
CASES: dict[str, Case | None] = {
    "GET /api/v1/me": None,
    "POST /api/v1/auth/logout": None,
    "GET /api/v1/auth/sessions": None,
    "DELETE /api/v1/auth/sessions/<uuid:session_id>": lambda v: {"session_id": v.session_id},
    "POST /api/v1/auth/password": None,  # one's own
    "GET /api/v1/users": None,
    "GET /api/v1/users/<user>": lambda v: {"user": v.user},
    "PUT /api/v1/users/<user>": None,  # makes or changes the caller's own user of that name
    "PATCH /api/v1/users/<user>": lambda v: {"user": v.user, "json": {"suspended": True}},
    "POST /api/v1/users/<user>/password-reset": lambda v: {"user": v.user},
    "GET /api/v1/users/<user>/sessions": lambda v: {"user": v.user},
    "DELETE /api/v1/users/<user>/sessions": lambda v: {"user": v.user},
    "DELETE /api/v1/users/<user>/sessions/<uuid:session_id>": lambda v: {"user": v.user, "session_id": v.session_id},
    "GET /api/v1/users/<user>/ledger": lambda v: {"user": v.user},
    "GET /api/v1/users/<user>/actions": lambda v: {"user": v.user},
    "GET /api/v1/users/<user>/likes": lambda v: {"user": v.user},
    "GET /api/v1/users/<user>/export": lambda v: {"user": v.user},
    "DELETE /api/v1/users/<user>": lambda v: {"user": v.user},
    "GET /api/v1/actions": lambda v: {"query": {"user": v.user}},
    "POST /api/v1/users/<user>/corrections": lambda v: {
        "user": v.user,
        "json": {"account": "points", "delta": 5, "reason": "because"},
    },
    "GET /api/v1/actions/catalog": None,
    "PUT /api/v1/actions/catalog/<action_type>": None,  # one's own catalog
    "DELETE /api/v1/actions/catalog/<action_type>": lambda _: {"action_type": "victim-action"},
    "POST /api/v1/action-tokens": lambda v: {"json": {"user": v.user, "action_type": "own-action"}},
    "POST /api/v1/scores/update": None,
    "PATCH /api/v1/scores": lambda v: {"json": {"action_token": v.action_token}},
    "GET /api/v1/integrity/flags": None,
    "POST /api/v1/live/tickets": None,
    "GET /api/v1/overview": None,
    "POST /dashboard/logout": None,
    "POST /api/v1/integrity/flags/<uuid:flag_id>/resolve": lambda v: {
        "flag_id": v.flag_id,
        "json": {"action": "reverse"},
    },
    "GET /api/v1/clients": None,
    "POST /api/v1/clients": None,
    "POST /api/v1/clients/<client_id>/rotate": lambda v: {"client_id": v.client_id},
    "DELETE /api/v1/clients/<client_id>": lambda v: {"client_id": v.client_id},
    "GET /api/v1/keys": None,
    "POST /api/v1/keys": None,
    "DELETE /api/v1/keys/<key_id>": lambda v: {"key_id": v.key_id},
    "POST /api/v1/keys/<key_id>/signing-secret": lambda v: {"key_id": v.key_id},
    "GET /api/v1/tokens": None,
    "POST /api/v1/tokens": None,
    "DELETE /api/v1/tokens/<token_id>": lambda v: {"token_id": v.token_id},
    "GET /api/v1/settings": None,
    "PATCH /api/v1/settings": None,
    "PUT /api/v1/pages/<external_id>": None,  # the same id in one's own tenant is one's own page
    "GET /api/v1/pages/<external_id>": lambda v: {"external_id": v.page},
    "GET /api/v1/pages": None,
    "POST /api/v1/pages": None,  # the same ids in one's own tenant are one's own pages
    "DELETE /api/v1/pages/<external_id>": lambda v: {"external_id": v.page},
    "PUT /api/v1/pages/<external_id>/like": lambda v: {"external_id": v.page},
    "DELETE /api/v1/pages/<external_id>/like": lambda v: {"external_id": v.page},
    "GET /api/v1/pages/<external_id>/like": lambda v: {"external_id": v.page},
    "GET /api/v1/pages/<external_id>/likes": lambda v: {"external_id": v.page},
    "PUT /api/v1/pages/<external_id>/likes/<user>": lambda v: {"external_id": v.page, "user": "u-1"},
    "DELETE /api/v1/pages/<external_id>/likes/<user>": lambda v: {"external_id": v.page, "user": "u-1"},
    "POST /api/v1/pages/<external_id>/views": lambda v: {"external_id": v.page, "json": {}},
    "GET /api/v1/pages/<external_id>/stats": lambda v: {"external_id": v.page},
    "GET /api/v1/pages/<external_id>/series": lambda v: {"external_id": v.page},
    "GET /api/v1/spaces": None,
    "GET /api/v1/leaderboards": None,
    "GET /api/v1/leaderboards/rank": lambda v: {"query": {"member": v.page}},
    "GET /api/v1/leaderboards/export.csv": None,
    "GET /api/v1/settings/weights": None,
    "PUT /api/v1/settings/weights": None,
    "POST /api/v1/settings/weights/preview": None,
    "POST /api/v1/events": None,
    "GET /api/v1/ingest/rejections": None,
    "GET /api/v1/ingest/unknown": None,
    "POST /api/v1/ingest/unknown/pages": lambda v: {"json": {"url": v.unknown}},
    "DELETE /api/v1/ingest/unknown": lambda v: {"query": {"url": v.unknown}},
    "POST /api/v1/quests": lambda v: {"json": {"user": "u-1", "template": v.template_id}},
    "GET /api/v1/quests": lambda v: {"query": {"creator": v.user}},
    "GET /api/v1/users/<user>/quests": lambda v: {"user": v.user},
    "GET /api/v1/quests/<uuid:quest_id>": lambda v: {"quest_id": v.quest_id},
    **{
        f"POST /api/v1/quests/<uuid:quest_id>/{step}": lambda v: {"quest_id": v.quest_id, "json": {"user": "u-1"}}
        for step in ("claim", "release", "submit", "withdraw", "attestations", "dispute", "resolve", "cancel")
    },
    "GET /api/v1/rewards/failed": None,
    "POST /api/v1/rewards/failed/<uuid:reward_id>/retry": lambda v: {"reward_id": v.reward_id},
    "GET /api/v1/quest-templates": None,
    "POST /api/v1/quest-templates": None,
    "GET /api/v1/quest-templates/<uuid:template_id>": lambda v: {"template_id": v.template_id},
    "PUT /api/v1/quest-templates/<uuid:template_id>": lambda v: {"template_id": v.template_id, "json": TEMPLATE},
    "DELETE /api/v1/quest-templates/<uuid:template_id>": lambda v: {"template_id": v.template_id},
    "GET /api/v1/quest-categories": None,
    "PUT /api/v1/quest-categories/<tag>": None,  # one's own categories
    "DELETE /api/v1/quest-categories/<tag>": lambda _: {"tag": "victim-tag"},
}


# Routes without a tenant's token: what each goes by, and so why it can name nobody else's thing.
OPEN_ROUTES = {
    "POST /oauth/token": "the client's own secret",
    "POST /oauth/revoke": "the client's own secret, and a token of that client",
    "GET /.well-known/jwks.json": "public keys",
    "GET /.well-known/oauth-authorization-server": "addresses",
    "POST /api/v1/auth/register": "a new name in the tenant that is named (test_logins)",
    "POST /api/v1/auth/login": "the user's own password (test_logins)",
    "POST /api/v1/auth/refresh": "a refresh token, which names its tenant and is signed",
    "POST /api/v1/auth/reset": "a reset token, which names its tenant",
    "POST /api/v1/beacon": "a key, which names its tenant",
    "GET /plaudit.js": "a file",
    "GET /embed/popular": "a key, which names its tenant (test_widgets)",
    "GET /embed/popular.js": "a file",
    "GET /embed/badge/<external_id>.svg": "a key, which names its tenant (test_widgets)",
    "GET /": "says where the dashboard is",
    "GET /dashboard": "the same page for everybody",
    "GET /dashboard/<path:_view>": "the same page for everybody",
    "GET /assets/<version>/<path:name>": "files",
    "POST /dashboard/login": "the user's own password (test_dashboard)",
    "GET /static/<path:filename>": "files",
    "GET /api/openapi.json": "the contract",
    "GET /api/docs": "the contract",
    "GET /ws/leaderboards": "says where it is",
    "GET /ws/scoreboard/top10": "says where it is",
    "GET /api/v1/live/events": "says where it is",
    "GET /health/live": "nothing",
    "GET /health/ready": "nothing",
    "GET /metrics": "for operators",
}


def routes(app: Flask, *, open_ones: bool) -> set[str]:
    return {
        f"{method} {rule.rule}"
        for rule in app.url_map.iter_rules()
        for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}
        if isinstance(declared(app.view_functions[rule.endpoint]), Access) is open_ones
    }


def everything_of(tenant: str) -> str:
    with owner_tx() as tx:
        tables = tx.scalars(
            text(
                "SELECT table_name FROM information_schema.columns"
                " WHERE table_schema = 'public' AND column_name = 'tenant_id'"
            )
        )
        return "\n".join(
            str(sorted(tx.scalars(text(f"SELECT x::text FROM {table} x WHERE tenant_id = :t"), {"t": tenant})))
            for table in sorted(tables)
        )


@pytest.fixture
def victim(client: FlaskClient, other_tenant: str) -> Victim:
    admin = client_of(client, other_tenant)
    user = user_of(client, other_tenant, username="victim_user")
    key = admin("POST", "/api/v1/keys", json={"origins": ["https://victim.example"]}).get_json()["key"]
    body = {"space": "secret", "title": "victim_title", "url": "https://victim.example/p"}
    assert admin("PUT", "/api/v1/pages/victim-page", json=body).status_code == 201
    beacon = send(
        client, key, '{"url": "https://victim.example/unknown"}', headers={"Origin": "https://victim.example"}
    )
    assert beacon.get_json()["rejected"], beacon.text
    token_id = admin("POST", "/api/v1/tokens", json={"name": "x", "scopes": ["admin"]}).get_json()["id"]
    session = user("GET", "/api/v1/auth/sessions").get_json()["items"][0]["id"]
    admin("PATCH", "/api/v1/settings", json={"integrity": {"points_per_hour": 1}})
    assert admin("PUT", "/api/v1/actions/catalog/victim-action", json={"points": 5}).status_code == 200
    tokens = [
        admin("POST", "/api/v1/action-tokens", json={"user": user.id, "action_type": "victim-action"}).get_json()
        for _ in range(2)
    ]
    assert user("PATCH", "/api/v1/scores", json={"action_token": tokens[0]["action_token"]}).status_code == 200
    (flag,) = admin("GET", "/api/v1/integrity/flags").get_json()["items"]
    admin("PUT", "/api/v1/quest-categories/victim-tag", json={"name": "victim_user's"})
    template = admin("POST", "/api/v1/quest-templates", json={**TEMPLATE, "title": "victim_user"}).get_json()["id"]
    quest, reward = quest_of(other_tenant)
    token = tokens[1]["action_token"]
    return Victim(other_tenant, admin.id, key, token_id, user.id, session, token, flag["id"], quest, template, reward)


def quest_of(tenant: str) -> tuple[str, str]:
    """A quest, and a reward of another one that is owed."""
    world = World(tenant)
    creator, performer = world.person(), world.person()
    done = world.get(world.done(creator, performer, creator))
    with tenant_tx(tenant) as tx:
        rewards._owe(tx, done, Reward.XP, RuntimeError("the test's own"), now=utcnow())
        (owed,) = rewards.list_(tx, status=None, after=None, limit=1)
        return str(world.create(creator, title="victim_user's quest")), str(owed.id)


def test_every_route_has_a_case(app: Flask) -> None:
    assert routes(app, open_ones=False) == set(CASES), "a new route needs a case here"
    assert routes(app, open_ones=True) == set(OPEN_ROUTES), "a new open route needs its reason here"


def test_open_routes_reach_nothing_of_another_tenant(
    client: FlaskClient, tenant: str, other_tenant: str, victim: Victim
) -> None:
    attacker, owner = client_of(client, tenant), client_of(client, other_tenant)
    user = user_of(client, other_tenant)
    reset = owner("POST", f"/api/v1/users/{victim.user}/password-reset").get_json()["reset_token"]
    before = everything_of(other_tenant)
    revoke = client.post("/oauth/revoke", data={"token": owner.token}, auth=(attacker.id, attacker.secret))
    assert revoke.status_code == 400
    swapped = [token.replace(f"_{other_tenant}_", f"_{tenant}_") for token in (user.refresh_token, reset)]
    for refresh in (swapped[0], f"rt_{other_tenant}_{victim.session_id.replace('-', '')}_x"):
        assert client.post("/api/v1/auth/refresh", json={"refresh_token": refresh}).status_code == 401
    spent = client.post("/api/v1/auth/reset", json={"reset_token": swapped[1], "password": "a new password"})
    assert spent.status_code == 401
    key = victim.key_id.replace(f"_{other_tenant}_", f"_{tenant}_")
    headers = {"Origin": "https://victim.example", "User-Agent": "Mozilla/5.0 Firefox/130.0"}
    assert client.post(f"/api/v1/beacon?key={key}", data='{"page": "victim-page"}', headers=headers).status_code == 401
    assert everything_of(other_tenant) == before
    assert owner("GET", "/api/v1/me").status_code == 200
    assert user("GET", "/api/v1/me").status_code == 200


@pytest.mark.parametrize("who", ["client", "admin"])
def test_nothing_of_another_tenant_is_seen_or_changed(
    app: Flask, client: FlaskClient, tenant: str, victim: Victim, who: str
) -> None:
    before = everything_of(victim.tenant)
    attacker: Caller | None = None
    own = client_of(client, tenant)
    assert own("PUT", "/api/v1/actions/catalog/own-action", json={"points": 5}).status_code == 200
    for route, case in CASES.items():
        if attacker is None or attacker("GET", "/api/v1/me").status_code == 401:  # a route that ends one's own session
            attacker = client_of(client, tenant) if who == "client" else user_of(client, tenant, role=Role.ADMIN)
        method, path = route.split(" ")
        options = case(victim) if case else {}
        query = options.pop("query", {})
        body = options.pop("json", {"origins": ["https://a.example"], "name": "x", "scopes": ["admin"]})
        for name, value in options.items():
            for marker in (f"<{name}>", f"<uuid:{name}>"):
                path = path.replace(marker, value)
        sent = {"json": body} if method in {"POST", "PATCH", "PUT"} else {}
        answer = attacker(method, path, query_string=query, **sent)
        assert answer.status_code < 500, (route, answer.text)
        if case is not None:
            assert answer.status_code in {403, 404}, (route, answer.status_code, answer.text)
        for secret in (victim.tenant, victim.key_id, victim.session_id, "victim_user", "victim.example"):
            assert secret not in answer.text, route
    assert everything_of(victim.tenant) == before


def test_missing_and_another_tenants_get_the_same_answer(client: FlaskClient, tenant: str, victim: Victim) -> None:
    attacker = client_of(client, tenant)
    theirs = attacker("GET", f"/api/v1/users/{victim.user}").get_json()
    nobodys = attacker("GET", "/api/v1/users/00000000-0000-4000-8000-000000000000").get_json()
    theirs.pop("request_id")
    nobodys.pop("request_id")
    assert theirs == nobodys
