"""The dashboard's page, files and cookie, as HTTP. What it looks like and does is tests/browser."""

import re
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient
from sqlalchemy import text

from analytics.boards import projection, series
from analytics.boards.names import board_of
from analytics.metrics import VIEWS
from analytics.windows import Window
from app.api import overview
from app.http.answer_cache import Answer
from app.http.services import services_of
from app.settings import Settings
from app.web import create_app
from tenants.db import owner_tx, utcnow
from tenants.users import Role
from tests.people import PASSWORD, Caller, client_of, user_of

OWN = {"X-Plaudit-Dashboard": "1"}


def username_of(user: Caller) -> str:
    name: str = user("GET", "/api/v1/me").get_json()["user"]["username"]
    return name


def sign_in(http: FlaskClient, user: Caller, **headers: str) -> Any:
    body = {"tenant": user.tenant, "username": username_of(user), "password": PASSWORD}
    return http.post("/dashboard/login", json=body, headers=OWN | headers)


@pytest.fixture
def browser(app: Flask, client: FlaskClient, tenant: str) -> FlaskClient:
    """A browser that has signed in as an admin."""
    fresh = app.test_client()
    assert sign_in(fresh, user_of(client, tenant, role=Role.ADMIN)).status_code == 204
    return fresh


def test_the_page_is_the_same_for_everybody_and_loads_only_its_own(client: FlaskClient, browser: FlaskClient) -> None:
    page = client.get("/dashboard")
    assert page.status_code == client.get("/dashboard/people").status_code == 200
    policy = page.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    addresses = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert len(addresses) > 5
    assert all(address.startswith(("/", "#")) for address in addresses)
    for address in addresses:
        if address.startswith("/assets"):
            answer = client.get(address)
            assert answer.status_code == 200
            assert "immutable" in answer.headers["Cache-Control"]
    assert client.get("/").location == "/dashboard"
    assert "data-was-here" not in page.text
    assert "data-was-here" in browser.get("/dashboard").text


def test_files_are_compressed_for_who_takes_it_and_of_an_old_page_not_kept(client: FlaskClient) -> None:
    address = re.findall(r'src="(/assets/[^"]+main.js)"', client.get("/dashboard").text)[0]
    plain, zipped = client.get(address), client.get(address, headers={"Accept-Encoding": "gzip"})
    assert zipped.headers["Content-Encoding"] == "gzip"
    assert len(zipped.data) < len(plain.data)
    assert client.get(re.sub(r"/assets/\w+", "/assets/old", address)).headers["Cache-Control"] == "no-cache"
    assert client.get("/assets/x/../settings.py").status_code == 404
    assert client.get("/assets/x/nosuch.js").status_code == 404


def test_the_cookie_is_out_of_reach_of_scripts_and_other_sites(app: Flask, client: FlaskClient, tenant: str) -> None:
    answer = sign_in(app.test_client(), user_of(client, tenant))
    cookie = answer.headers["Set-Cookie"]
    assert {"HttpOnly", "SameSite=Lax", "Path=/"} <= set(cookie.split("; "))
    assert answer.data == b""


def test_over_https_the_cookie_is_for_https_and_this_host_only(
    settings: Settings, client: FlaskClient, tenant: str
) -> None:
    secure = create_app(replace(settings, public_url="https://plaudit.example"))
    cookie = sign_in(secure.test_client(), user_of(client, tenant)).headers["Set-Cookie"]
    assert cookie.startswith("__Host-plaudit_session=ds_")
    assert "Secure" in cookie
    services_of(secure).boards.close()


def test_with_the_cookie_the_api_answers(browser: FlaskClient, tenant: str) -> None:
    me = browser.get("/api/v1/me").get_json()
    assert (me["kind"], me["tenant"], me["tenant_name"]) == ("user", tenant, f"Tenant {tenant}")
    assert browser.get("/api/v1/leaderboards").status_code == 200
    assert browser.get("/api/v1/clients").status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Sec-Fetch-Site": "cross-site"},
        OWN | {"Sec-Fetch-Site": "same-site"},
        OWN | {"Sec-Fetch-Site": "cross-site"},
    ],
)
def test_another_site_changes_nothing_with_the_cookie(browser: FlaskClient, headers: dict[str, str]) -> None:
    for method, path, body in (
        ("POST", "/api/v1/clients", {"name": "x", "scopes": ["admin"]}),
        ("PATCH", "/api/v1/settings", {"signup_open": False}),
        ("PUT", "/api/v1/pages/x", {"space": "s", "title": "t", "url": "/x"}),
        ("POST", "/api/v1/live/tickets", None),
        ("POST", "/api/v1/pages/x/views", {}),
        ("POST", "/dashboard/logout", None),
    ):
        answer = browser.open(path, method=method, json=body, headers=headers)
        assert (answer.status_code, answer.get_json()["code"]) == (403, "cross_site"), path
    assert browser.get("/api/v1/me").status_code == 200
    assert browser.post("/api/v1/clients", json={"name": "x", "scopes": ["admin"]}, headers=OWN).status_code == 201


def test_no_preflight_lets_another_site_send_our_header(client: FlaskClient) -> None:
    asked = {
        "Origin": "https://evil.example",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "x-plaudit-dashboard",
    }
    answer = client.options("/api/v1/clients", headers=asked)
    assert "x-plaudit-dashboard" not in answer.headers.get("Access-Control-Allow-Headers", "").lower()
    assert "Access-Control-Allow-Credentials" not in answer.headers


def test_nobody_is_signed_in_by_another_site(client: FlaskClient, tenant: str) -> None:
    user = user_of(client, tenant)
    body = {"tenant": tenant, "username": username_of(user), "password": PASSWORD}
    assert client.post("/dashboard/login", json=body).status_code == 403
    assert (
        client.post("/dashboard/login", json=body | {"password": "wrong"}, headers=OWN).get_json()["code"]
        == "invalid_credentials"
    )


def test_signing_out_ends_the_session_at_once(browser: FlaskClient) -> None:
    cookie = browser.get_cookie("plaudit_session")
    assert cookie is not None
    assert browser.post("/dashboard/logout", headers=OWN).status_code == 204
    assert browser.get_cookie("plaudit_session") is None
    browser.set_cookie("plaudit_session", cookie.value)
    assert browser.get("/api/v1/me").status_code == 401


def test_a_session_that_has_run_out_does_not_count(browser: FlaskClient, tenant: str) -> None:
    with owner_tx() as tx:
        tx.execute(
            text("UPDATE sessions SET expires_at = now() - interval '1 second' WHERE tenant_id = :t"), {"t": tenant}
        )
    assert browser.get("/api/v1/me").status_code == 401


def test_a_cookie_is_no_other_token_and_none_is_a_cookie(
    browser: FlaskClient, client: FlaskClient, tenant: str
) -> None:
    cookie = browser.get_cookie("plaudit_session")
    assert cookie is not None
    assert client.post("/api/v1/auth/refresh", json={"refresh_token": cookie.value}).status_code == 401
    assert client.get("/api/v1/me", headers={"Authorization": f"Bearer {cookie.value}"}).status_code == 401
    user = user_of(client, tenant)
    tenant_id, session, owner, rest = cookie.value.removeprefix("ds_").split("_", 3)
    for wrong in (
        user.refresh_token,
        user.token,
        cookie.value[:-1] + ("0" if cookie.value[-1] != "0" else "1"),
        f"ds_{tenant_id}_{session}_{user.id.replace('-', '')}_{rest}",
        f"ds_other_{session}_{owner}_{rest}",
        "ds_" + "_" * 5,
        "ds_é",
        "",
    ):
        browser.set_cookie("plaudit_session", wrong)
        assert browser.get("/api/v1/me").status_code == 401, wrong


def test_a_member_sees_boards_and_not_the_admins_corner(app: Flask, client: FlaskClient, tenant: str) -> None:
    fresh = app.test_client()
    sign_in(fresh, user_of(client, tenant))
    assert fresh.get("/api/v1/leaderboards").status_code == 200
    assert fresh.get("/api/v1/overview").status_code == 200
    assert fresh.get("/api/v1/clients").status_code == 403


# --- Totals and trends -----------------------------------------------------------------------------------------------


def test_an_overview_adds_up_to_the_boards(client: FlaskClient, tenant: str) -> None:
    wiki = client_of(client, tenant)
    now = utcnow()
    for name, space, visibility in (("a", "docs", "private"), ("b", "blog", "public")):
        body = {"space": space, "title": name, "url": f"/{name}", "visibility": visibility}
        assert wiki("PUT", f"/api/v1/pages/{name}", json=body).status_code == 201
    scopes = {
        "tenant": ("a", "b"),
        "space:docs": ("a",),
        "space:none": (),
        "public": ("b",),
        "public:blog": ("b",),
        "public:docs": (),
    }
    ages = [
        timedelta(0),
        timedelta(hours=5),
        timedelta(hours=23),
        timedelta(hours=25),
        timedelta(days=6),
        timedelta(days=9),
    ]
    events = [{"type": "view", "page": "a", "occurred_at": (now - age).isoformat()} for age in ages]
    events += [{"type": "view", "page": "b"}, {"type": "like", "page": "b", "user": "ann"}]
    backfill = client_of(client, tenant, "events:write", "events:backfill")
    assert backfill("POST", "/api/v1/events", json={"events": events}).get_json()["accepted"] == len(events)
    projection.project_all(tenant, now=utcnow)
    for window in ("1d", "7d", "30d", "all"):
        for scope, pages in scopes.items():
            found = wiki("GET", f"/api/v1/overview?scope={scope}&window={window}").get_json()
            stats = [wiki("GET", f"/api/v1/pages/{page}/stats").get_json() for page in pages]
            for counted in ("views", "likes"):
                assert found[counted]["total"] == sum(one[counted][window] for one in stats), (window, scope)
                assert sum(point["value"] for point in found[counted]["points"]) == found[counted]["total"]
    day = wiki("GET", "/api/v1/overview?scope=space:docs&window=1d").get_json()
    assert (len(day["views"]["points"]), day["views"]["previous"], day["step_s"]) == (24, 1, 3600)
    week = wiki("GET", "/api/v1/overview?scope=space:docs&window=7d").get_json()
    assert (len(week["views"]["points"]), week["views"]["previous"]) == (28, 1)
    assert wiki("GET", "/api/v1/overview?window=all").get_json()["views"]["previous"] is None


def test_what_took_long_to_make_is_kept_and_says_so(
    client: FlaskClient, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wiki = client_of(client, tenant)
    wiki("PUT", "/api/v1/pages/a", json={"space": "docs", "title": "a", "url": "/a"})
    monkeypatch.setattr(overview, "QUICK_S", 0)
    monkeypatch.setattr(overview, "MAX_AGE_PER_COST", 1_000_000)
    first = wiki("GET", "/api/v1/overview")
    wiki("POST", "/api/v1/pages/a/views")
    again = wiki("GET", "/api/v1/overview")
    assert (first.headers["Age"], again.headers["Age"]) == ("0", "1")
    assert first.get_json() == again.get_json()


def test_made_up_spaces_take_nobodys_place(client: FlaskClient, tenant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wiki = client_of(client, tenant)
    wiki("PUT", "/api/v1/pages/a", json={"space": "docs", "title": "a", "url": "/a"})
    monkeypatch.setattr(overview, "QUICK_S", 0)
    monkeypatch.setattr(overview, "MAX_AGE_PER_COST", 1_000_000)
    monkeypatch.setattr(overview, "MAX_ANSWERS_PER_TENANT", 3)
    kept = overview._OverviewCache()
    monkeypatch.setattr(overview, "_cache", kept)
    for path in ("/api/v1/overview", "/api/v1/overview?scope=space:docs"):
        assert wiki("GET", path).headers["Age"] == "0"
    for number in range(20):
        answer = wiki("GET", f"/api/v1/overview?scope=space:made-up-{number}")
        assert (answer.status_code, answer.get_json()["views"]["total"], answer.headers["Age"]) == (200, 0, "0")
    for path in ("/api/v1/overview", "/api/v1/overview?scope=space:docs"):
        assert wiki("GET", path).headers["Age"] != "0", "still kept"
    assert kept.sizes() == {tenant: 2}


def test_each_tenant_keeps_its_latest_overviews_and_none_of_anothers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overview, "QUICK_S", 0)
    monkeypatch.setattr(overview, "MAX_AGE_PER_COST", 1_000_000)
    monkeypatch.setattr(overview, "MAX_ANSWERS_PER_TENANT", 3)
    monkeypatch.setattr(overview, "MAX_TENANTS", 4)
    kept = overview._OverviewCache()

    def is_kept(tenant_id: str, space: str) -> bool:
        made: list[str] = []

        def make() -> tuple[Answer, bool]:
            made.append(space)
            return Answer.of(b"{}", version=0), True

        kept.get(board_of(tenant_id, f"space:{space}", Window.WEEK, VIEWS.name), make)
        return not made

    assert not is_kept("small", "a")
    for number in range(10):
        assert not is_kept("big", f"s{number}")
        assert is_kept("big", "s0"), "what is read stays"
    assert is_kept("small", "a")
    assert kept.sizes() == {"small": 1, "big": 3}
    for number in range(10):
        assert not is_kept(f"tenant-{number}", "a")
    assert len(kept.sizes()) == 4


def test_an_overview_that_many_ask_for_at_once_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overview, "QUICK_S", 0)
    monkeypatch.setattr(overview, "MAX_AGE_PER_COST", 1_000_000)
    kept, made = overview._OverviewCache(), []
    board = board_of("demo", "tenant", Window.WEEK, VIEWS.name)

    def make() -> tuple[Answer, bool]:
        made.append(1)
        time.sleep(0.1)
        return Answer.of(b"{}", version=0), True

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: kept.get(board, make), range(8)))
    assert (len(answers), len(made)) == (8, 1)
    assert kept._computing == {}, "nothing is left of those who waited"


def test_what_is_quick_is_never_old(client: FlaskClient, tenant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wiki = client_of(client, tenant)
    wiki("PUT", "/api/v1/pages/a", json={"space": "docs", "title": "a", "url": "/a"})
    monkeypatch.setattr(overview, "QUICK_S", 60)
    for views in (1, 2, 3):
        wiki("POST", "/api/v1/pages/a/views")
        answer = wiki("GET", "/api/v1/overview")
        assert (answer.get_json()["views"]["total"], answer.headers["Age"]) == (views, "0")


def test_where_a_trend_takes_too_long_the_totals_are_still_there(
    client: FlaskClient, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wiki = client_of(client, tenant)
    for name, visibility in (("a", "private"), ("b", "public")):
        body = {"space": "docs", "title": name, "url": f"/{name}", "visibility": visibility}
        assert wiki("PUT", f"/api/v1/pages/{name}", json=body).status_code == 201
        wiki("POST", f"/api/v1/pages/{name}/views")
    projection.project_all(tenant, now=utcnow)
    with owner_tx() as blocking:
        blocking.execute(text("LOCK TABLE page_views_hour IN ACCESS EXCLUSIVE MODE"))
        monkeypatch.setattr(series, "MAX_TREND_MS", 200)
        found = wiki("GET", "/api/v1/overview?window=7d").get_json()
        public = wiki("GET", "/api/v1/overview?scope=public:docs&window=7d").get_json()
    assert found["views"] == {"total": 2, "previous": None, "points": []}
    assert public["views"] == {"total": 1, "previous": None, "points": []}
    assert found["likes"]["points"]


@pytest.mark.parametrize("query", ["scope=global", "scope=users", "scope=nonsense", "window=2d", "x=1"])
def test_an_overview_of_nothing_is_refused(client: FlaskClient, tenant: str, query: str) -> None:
    assert client_of(client, tenant)("GET", f"/api/v1/overview?{query}").status_code == 422
