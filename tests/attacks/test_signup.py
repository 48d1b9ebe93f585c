"""A stranger with a publishable key and open sign-up: registers, and reads nothing private through any route."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from itertools import product
from secrets import token_hex
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient

from analytics.boards import projection, snapshots
from tenants.db import utcnow
from tenants.users import Role
from tests.attacks.test_other_tenants import routes
from tests.people import PASSWORD, Caller, client_of, log_in, user_of

pytestmark = pytest.mark.long

# A private page by itself, and one in a space that has a public page too.
PAGES = {
    "open-page": {"space": "open-space", "title": "Open title", "url": "/open-url", "visibility": "public"},
    "hidden-page": {"space": "hidden-space", "title": "Hidden title", "url": "/hidden-url"},
    "hidden-beside": {"space": "open-space", "title": "Hidden title too", "url": "/hidden-url-too"},
}
# What no answer may say, unless the question said it.
SECRETS = ("Hidden title", "hidden-url", "hidden-space", "hidden-page", "hidden-beside")
PRIVATE_SCOPES = ("tenant", "space:open-space", "space:hidden-space", "space:nowhere")
PUBLIC_SCOPES = ("public", "public:open-space", "public:hidden-space", "global")


@dataclass
class Wiki:
    admin: Caller
    key: str

    @property
    def tenant(self) -> str:
        return self.admin.tenant

    def change_user(self, user: Caller, **changes: Any) -> None:
        answer = self.admin("PATCH", f"/api/v1/users/{user.id}", json=changes)
        assert answer.status_code == 200, answer.text

    def set(self, **changes: Any) -> None:
        assert self.admin("PATCH", "/api/v1/settings", json=changes).status_code == 200


@pytest.fixture
def wiki(client: FlaskClient, tenant: str) -> Wiki:
    admin = client_of(client, tenant)
    for name, body in PAGES.items():
        assert admin("PUT", f"/api/v1/pages/{name}", json=body).status_code == 201
        assert admin("POST", f"/api/v1/pages/{name}/views", json={}).status_code == 202
        assert admin("PUT", f"/api/v1/pages/{name}/likes/ann").status_code == 200
    assert admin("PUT", "/api/v1/actions/catalog/wave", json={"points": 5}).status_code == 200
    events = [{"type": "action", "action_type": "wave", "user": "ann"}]
    assert admin("POST", "/api/v1/events", json={"events": events}).get_json()["accepted"] == 1
    projection.project_all(tenant, now=utcnow)
    for day in (1, 0):
        snapshots.refresh(tenant, now=utcnow() - timedelta(days=day))
    key = admin("POST", "/api/v1/keys", json={"origins": ["https://wiki.example"]}).get_json()["key"]
    made = Wiki(admin, key)
    made.set(signup_open=True)
    return made


@pytest.fixture
def stranger(client: FlaskClient, wiki: Wiki) -> Caller:
    """Knows the key, which is on every page of the site, and spells the tenant's id."""
    login = {"tenant": wiki.key.split("_")[1], "username": f"stranger_{token_hex(4)}", "password": PASSWORD}
    made = client.post("/api/v1/auth/register", json={**login, "email": f"{login['username']}@example.org"})
    assert made.status_code == 201, made.text
    token = log_in(client, wiki.tenant, login["username"])["access_token"]
    return Caller(client, wiki.tenant, token, made.get_json()["id"], secret=login["username"])


def boards(**extra: str) -> Iterator[dict[str, str]]:
    yield extra
    for scope, metric in product((*PRIVATE_SCOPES, *PUBLIC_SCOPES), ("views", "score")):
        yield {"scope": scope, "metric": metric, "window": "all", **extra}


# The questions of routes that take any; other routes are asked without one.
YESTERDAY = (utcnow() - timedelta(days=1)).date().isoformat()
QUESTIONS: dict[str, list[dict[str, str]]] = {
    "GET /api/v1/leaderboards": [
        *boards(),
        *boards(limit="1000"),
        *boards(explain="true"),
        *boards(as_of=YESTERDAY),
        *boards(members="hidden-page,hidden-beside,open-page"),
        {"scope": "users"},
        {"scope": "users", "explain": "true"},
    ],
    "GET /api/v1/leaderboards/rank": [
        *boards(member="hidden-page", around="5"),
        *boards(member="open-page", around="5"),
        {"scope": "users", "member": "me", "around": "5"},
    ],
    "GET /api/v1/leaderboards/export.csv": list(boards()),
    "GET /api/v1/overview": [{}, *({"scope": scope} for scope in (*PRIVATE_SCOPES, *PUBLIC_SCOPES))],
    "GET /api/v1/pages": [{}, {"space": "hidden-space"}, {"space": "open-space"}],
    "GET /api/v1/spaces": [{}, {"limit": "1"}],
    "GET /api/v1/pages/<external_id>/series": [{"metric": "views"}, {"metric": "likes", "step": "day"}],
}
BODIES: dict[str, dict[str, Any]] = {
    "POST /api/v1/events": {"events": [{"type": "view", "page": "hidden-page"}]},
    "POST /api/v1/settings/weights/preview": {"likes": 1, "views": 1},
    "POST /api/v1/scores/update": {
        "actionId": "6f0f7a3e-6b0b-4a52-9a0e-0c5ac0ffee00",
        "actionType": "wave",
        "timestamp": utcnow().isoformat(),
        "object": "hidden-page",
    },
}


@pytest.mark.parametrize("page", ["hidden-page", "hidden-beside"])
def test_a_stranger_reads_nothing_private_through_any_route(
    app: Flask, client: FlaskClient, wiki: Wiki, stranger: Caller, page: str
) -> None:
    member = user_of(client, wiki.tenant)
    named = {
        "<external_id>": page,
        "<user>": member.id,
        "<uuid:session_id>": "00000000-0000-4000-8000-000000000000",
        "<uuid:flag_id>": "00000000-0000-4000-8000-000000000000",
        "<client_id>": wiki.admin.id,
        "<key_id>": wiki.key,
        "<token_id>": "0" * 32,
        "<action_type>": "wave",
        "<tag>": "wave",
        **{f"<uuid:{name}_id>": "00000000-0000-4000-8000-000000000000" for name in ("quest", "template", "reward")},
    }
    likes_before = likes_of(wiki, page)
    for route in sorted(routes(app, open_ones=False)):
        method, path = route.split(" ")
        for parameter, value in named.items():
            path = path.replace(parameter, value)
        assert "<" not in path, f"{route}: a new parameter needs a value here"
        body: Any = {"json": BODIES.get(route, {})} if method in {"POST", "PUT", "PATCH"} else {}
        for query in QUESTIONS.get(route, [{}]):
            # Each with what a member has, and with the key alone.
            by_key = client.open(path, method=method, headers={"X-Plaudit-Key": wiki.key}, query_string=query, **body)
            answer = stranger(method, path, query_string=query, **body)
            for said in (answer, by_key):
                asked = f"{path} {query} {body}"
                assert said.status_code < 500, (route, query, said.text)
                assert [one for one in SECRETS if one in said.text and one not in asked] == [], (route, query)
            if "<external_id>" in route:
                assert answer.status_code in {403, 404}, (route, answer.text)
            if query.get("scope") in PRIVATE_SCOPES:
                assert (answer.status_code, answer.get_json()["code"]) == (403, "public_boards_only"), (route, query)
        if route.endswith("/logout"):
            stranger.token = log_in(client, wiki.tenant, stranger.secret)["access_token"]
    assert likes_of(wiki, page) == likes_before


def likes_of(wiki: Wiki, page: str) -> int:
    stats = wiki.admin("GET", f"/api/v1/pages/{page}/series?metric=likes").get_json()
    return sum(point["value"] for point in stats["points"])


def test_missing_and_private_get_the_same_answer(stranger: Caller) -> None:
    for method, end in [("GET", ""), ("GET", "/stats"), ("GET", "/series"), ("PUT", "/like"), ("DELETE", "/like")]:
        private, missing = (stranger(method, f"/api/v1/pages/{page}{end}") for page in ("hidden-page", "missed-page"))
        assert private.status_code == missing.status_code == 404, (method, end)
        said, expected = private.get_json(), missing.get_json()
        assert said.pop("request_id") != expected.pop("request_id")
        assert said == {**expected, "detail": expected["detail"].replace("missed-page", "hidden-page")}
    with_key = stranger("PUT", "/api/v1/pages/hidden-page/like", headers={"Idempotency-Key": "k"})
    assert with_key.status_code == 404


def test_what_is_public_a_stranger_sees_and_nothing_else_is_counted(stranger: Caller, wiki: Wiki) -> None:
    assert [page["external_id"] for page in stranger("GET", "/api/v1/pages").get_json()["items"]] == ["open-page"]
    assert stranger("GET", "/api/v1/pages/open-page").get_json()["title"] == "Open title"
    assert stranger("GET", "/api/v1/pages/open-page/stats").get_json()["views"]["all"] == 1
    spaces = stranger("GET", "/api/v1/spaces").get_json()["items"]
    assert spaces == [
        {"space": "open-space", "pages": 1, "public_pages": 1, "views_7d": 1, "visitors_7d": 0, "likes_7d": 1}
    ]
    for path in ("/api/v1/overview", "/api/v1/overview?scope=public:open-space", "/api/v1/overview?window=all"):
        overview = stranger("GET", path).get_json()
        assert [overview[name]["total"] for name in ("views", "likes")] == [1, 1]
    assert stranger("GET", "/api/v1/overview?scope=public:hidden-space").get_json()["views"]["total"] == 0
    assert wiki.admin("GET", "/api/v1/overview").get_json()["views"]["total"] == len(PAGES)
    board = stranger("GET", "/api/v1/leaderboards?metric=views").get_json()
    assert [row["page"]["external_id"] for row in board["items"]] == ["open-page"], "the default scope is public"
    assert stranger("GET", "/api/v1/leaderboards/rank?metric=views&member=open-page").get_json()["rank"] == 1
    csv = stranger("GET", "/api/v1/leaderboards/export.csv?metric=views").text
    assert csv.splitlines()[1].startswith("1,1,open-page,Open title")
    yesterday = (utcnow() - timedelta(days=1)).date()  # also after a midnight since the test module was loaded
    as_it_was = stranger("GET", f"/api/v1/leaderboards?metric=views&as_of={yesterday}").get_json()
    assert [row["page"]["external_id"] for row in as_it_was["items"]] == ["open-page"]


def test_a_stranger_likes_acts_and_sees_people_like_any_member(
    client: FlaskClient, stranger: Caller, wiki: Wiki
) -> None:
    assert stranger("PUT", "/api/v1/pages/open-page/like").get_json() == {"liked": True, "likes": 2}
    assert stranger("DELETE", "/api/v1/pages/open-page/like").get_json() == {"liked": False, "likes": 1}
    assert stranger("POST", "/api/v1/scores/update", json=BODIES["POST /api/v1/scores/update"]).status_code == 200
    projection.project_all(wiki.tenant, now=utcnow)
    path = "/api/v1/leaderboards?scope=users"
    people = stranger("GET", path).get_json()["items"]
    others = user_of(client, wiki.tenant)("GET", path).get_json()["items"]
    assert {row["user"]["external_id"] for row in others} == {"ann", None}
    for row in others:
        for name in ("external_id", "display_name", "avatar_url"):
            del row["user"][name]
    assert people == others
    assert stranger("GET", "/api/v1/users/me/ledger").get_json()["items"]
    assert stranger("GET", "/api/v1/users/me/export").status_code == 200


def test_a_stranger_learns_no_id_that_the_tenant_gave_its_users(wiki: Wiki, stranger: Caller) -> None:
    """It may be an e-mail address; a publishable key does not show it either."""
    page = {"space": "open-space", "title": "t", "url": "/owned", "visibility": "public", "owner": "ann@corp.example"}
    assert wiki.admin("PUT", "/api/v1/pages/owned", json=page).get_json()["owner"] == "ann@corp.example"
    assert wiki.admin("PUT", "/api/v1/pages/owned/likes/ann@corp.example").status_code == 200
    events = [{"type": "action", "action_type": "wave", "user": "ann@corp.example"}]
    assert wiki.admin("POST", "/api/v1/events", json={"events": events}).get_json()["accepted"] == 1
    projection.project_all(wiki.tenant, now=utcnow)
    someone = wiki.admin("GET", "/api/v1/users/ext:ann@corp.example").get_json()["id"]
    users = "scope=users&window=all"
    for path in (
        "pages",
        "pages/owned",
        f"users/{someone}",
        f"leaderboards?{users}",
        f"leaderboards?{users}&members={someone}",
        f"leaderboards/rank?{users}&member={someone}&around=3",
        f"leaderboards/export.csv?{users}",
    ):
        answer = stranger("GET", f"/api/v1/{path}")
        assert (answer.status_code, "corp.example" in answer.text) == (200, False), path
        assert wiki.admin("GET", f"/api/v1/{path}").status_code == 200
    for path in ("users/ext:ann@corp.example", f"leaderboards/rank?{users}&member=ext:ann@corp.example"):
        assert stranger("GET", f"/api/v1/{path}").status_code == 404, path


def test_strangers_use_up_nobody_elses_exports(wiki: Wiki, stranger: Caller) -> None:
    path = "/api/v1/leaderboards/export.csv?scope=users"
    statuses = [stranger("GET", path).status_code for _ in range(31)]
    assert statuses[-1] == 429
    assert wiki.admin("GET", path).status_code == 200


def sees_private(caller: Caller) -> bool:
    """Whether they do, asked of every kind of route: the answers agree."""
    answers = {
        caller("GET", "/api/v1/pages/hidden-page").status_code == 200,
        caller("GET", "/api/v1/leaderboards?scope=tenant&metric=views").status_code == 200,
        caller("GET", "/api/v1/overview?scope=space:hidden-space").status_code == 200,
        len(caller("GET", "/api/v1/spaces").get_json()["items"]) == 2,
        caller("GET", "/api/v1/me").get_json()["sees"] == "all",
    }
    assert len(answers) == 1
    return answers == {True}


def test_a_stranger_whom_an_admin_lets_see_all_sees_it_on_the_next_call(wiki: Wiki, stranger: Caller) -> None:
    assert not sees_private(stranger)
    wiki.change_user(stranger, sees_private=True)
    assert sees_private(stranger)
    wiki.change_user(stranger, sees_private=False)
    assert not sees_private(stranger)
    wiki.change_user(stranger, role=Role.ADMIN)
    assert sees_private(stranger), "admins always see all"
    wiki.change_user(stranger, role=Role.MEMBER)
    assert not sees_private(stranger)
    assert stranger("PATCH", f"/api/v1/users/{stranger.id}", json={"sees_private": True}).status_code == 403


def test_the_tenant_decides_what_strangers_see(client: FlaskClient, wiki: Wiki, stranger: Caller) -> None:
    member = user_of(client, wiki.tenant)
    assert (sees_private(stranger), sees_private(member)) == (False, True)
    wiki.set(signup_sees="all")
    assert (sees_private(stranger), sees_private(member)) == (True, True)
    wiki.set(signup_sees="public")
    assert (sees_private(stranger), sees_private(member)) == (False, True)
    wiki.change_user(member, sees_private=False)
    assert not sees_private(member), "also of somebody who did not register alone"


def test_who_sees_private_pages_is_shown_to_admins_and_to_oneself(
    client: FlaskClient, wiki: Wiki, stranger: Caller
) -> None:
    member, app = user_of(client, wiki.tenant), client_of(client, wiki.tenant, "stats:read")
    path = f"/api/v1/users/{stranger.id}"
    assert wiki.admin("GET", path).get_json()["sees_private"] is False
    assert stranger("GET", path).get_json()["sees_private"] is False
    assert stranger("GET", "/api/v1/me").get_json()["user"]["sees_private"] is False
    assert member("GET", "/api/v1/users/me").get_json()["sees_private"] is True
    for other in (member, app):
        assert other("GET", path).get_json()["sees_private"] is None


def test_a_user_created_by_the_tenant_sees_all(client: FlaskClient, wiki: Wiki) -> None:
    """Its app by an external id, one by one or many; and its people."""
    wiki.admin("PUT", "/api/v1/pages/open-page/likes/ben")
    owned = {**PAGES["open-page"], "url": "/owned", "owner": "cat"}
    assert wiki.admin("PUT", "/api/v1/pages/owned", json=owned).status_code == 201
    for name in ("ext:ann", "ext:ben", "ext:cat", user_of(client, wiki.tenant).id):
        assert wiki.admin("GET", f"/api/v1/users/{name}").get_json()["sees_private"] is True, name


def test_cached_answers_are_not_given_to_readers_who_may_not_see_them(
    client: FlaskClient, wiki: Wiki, stranger: Caller
) -> None:
    """The same questions, each asked by all in every order, within the moment that answers are kept."""
    wiki.set(public_scoreboard=True)
    member, by_key = user_of(client, wiki.tenant), {"X-Plaudit-Key": wiki.key}
    ask = {
        "member": lambda path: member("GET", path),
        "stranger": lambda path: stranger("GET", path),
        "key": lambda path: client.get(path, headers=by_key),
    }
    base = "/api/v1/leaderboards?metric=views"
    users = "/api/v1/leaderboards?scope=users"
    for order in (["member", "stranger", "key"], ["key", "stranger", "member"], ["stranger", "member", "key"]):
        pages = {who: [row["page"]["external_id"] for row in ask[who](base).get_json()["items"]] for who in order}
        assert len(pages.pop("member")) == len(PAGES)
        assert pages == {"stranger": ["open-page"], "key": ["open-page"]}
        for path in (f"{base}&scope=tenant", f"{base}&scope=public&explain=true".replace("views", "score")):
            statuses = {who: ask[who](path).status_code for who in order}
            assert statuses == {"member": 200, "stranger": 403, "key": 403}, path
        names = {who: "external_id" in ask[who](users).get_json()["items"][0]["user"] for who in order}
        assert names == {"member": True, "stranger": False, "key": False}
