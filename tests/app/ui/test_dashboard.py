"""The dashboard's page, files and cookie, as HTTP. What it shows and does is tested in tests/browser."""

import re
from dataclasses import replace
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient
from sqlalchemy import text

from app.http.services import services_of
from app.settings import Settings
from app.web import create_app
from tenants.db import owner_tx
from tenants.users import Role
from tests.people import PASSWORD, Caller, user_of

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


def test_nobody_is_ours_in_by_another_site(client: FlaskClient, tenant: str) -> None:
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


def test_an_expired_session_is_not_valid(browser: FlaskClient, tenant: str) -> None:
    with owner_tx() as tx:
        tx.execute(
            text("UPDATE sessions SET expires_at = now() - interval '1 second' WHERE tenant_id = :t"), {"t": tenant}
        )
    assert browser.get("/api/v1/me").status_code == 401


def test_a_cookie_is_not_accepted_as_a_token_nor_a_token_as_a_cookie(
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


def test_a_member_sees_boards_and_no_admin_pages(app: Flask, client: FlaskClient, tenant: str) -> None:
    fresh = app.test_client()
    sign_in(fresh, user_of(client, tenant))
    assert fresh.get("/api/v1/leaderboards").status_code == 200
    assert fresh.get("/api/v1/overview").status_code == 200
    assert fresh.get("/api/v1/clients").status_code == 403
