"""Reads of the fast lane: the same answers as the routes give, and never those of somebody else."""

from dataclasses import replace
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient

from analytics.boards import projection, versions
from analytics.boards.names import board_of
from analytics.windows import Window
from app.http.answer_cache import Answer
from app.http.fast_reads import plain_query
from tenants.db import tenant_tx, utcnow
from tests.analytics.conftest import make_page
from tests.app.http.lanes import answer_of, by_the_route, paths_at_the_routes
from tests.conftest import make_tenant
from tests.people import Caller, client_of, user_of
from tests.service import eventually

BOARD, RANK = "/api/v1/leaderboards", "/api/v1/leaderboards/rank"


@pytest.fixture
def admin(client: FlaskClient, tenant: str) -> Caller:
    """Three pages with views: two public, one private."""
    return fill(client, tenant)


@pytest.fixture(scope="module")
def created_once() -> dict[str, Caller]:
    return {}


@pytest.fixture
def readers(client: FlaskClient, created_once: dict[str, Caller]) -> dict[str, Caller]:
    """Readers of a tenant with `admin`'s pages, by kind. Shared by tests that change nothing."""
    if not created_once:
        tenant = make_tenant()
        created_once["client"] = fill(client, tenant)
        for kind in ("member", "stranger"):
            created_once[kind] = user_of(client, tenant, sees_private=kind == "member")
    return {kind: replace(reader, http=client) for kind, reader in created_once.items()}


def fill(client: FlaskClient, tenant: str) -> Caller:
    admin = client_of(client, tenant)
    for number, name in enumerate(("a", "b", "c"), 1):
        make_page(admin, name, visibility="private" if name == "c" else "public")
        events = [{"type": "view", "page": name}] * number + [{"type": "like", "page": name, "user": "ada"}]
        assert admin("POST", "/api/v1/events", json={"events": events}).status_code == 202
    projection.project_all(tenant, now=utcnow)
    return admin


READS = [
    BOARD,
    f"{BOARD}?scope=tenant&window=1d&metric=views&limit=2",
    f"{BOARD}?scope=space:docs&window=30d&metric=likes",
    f"{BOARD}?scope=public&window=all&metric=score&limit=1000",
    f"{BOARD}?scope=global&window=7d&metric=views",
    f"{BOARD}?scope=users",
    f"{BOARD}?limit=0",
    f"{BOARD}?limit=1001",
    f"{BOARD}?limit=01",
    f"{BOARD}?window=2d",
    f"{BOARD}?metric=nothing",
    f"{BOARD}?metric=points",
    f"{BOARD}?scope=nowhere",
    f"{BOARD}?scope=space%3Adocs",
    f"{BOARD}?limit=2&limit=3",
    f"{BOARD}?unknown=1",
    f"{BOARD}?explain=true",
    f"{BOARD}?members=a,b",
    f"{RANK}?member=a",
    f"{RANK}?member=a&around=1&metric=views",
    f"{RANK}?member=b&around=100&scope=public&window=all&metric=likes",
    f"{RANK}?member=nowhere",
    f"{RANK}?member=me&scope=users",
    f"{RANK}?member=a&around=101",
    f"{RANK}?member=a&around=-1",
    f"{RANK}?around=1",
    f"{RANK}?member=",
    "/api/v1/pages/a/stats",
    "/api/v1/pages/c/stats",
    "/api/v1/pages/nowhere/stats",
    "/api/v1/pages/a%00/stats",
    "/api/v1/pages/a/stats?x=1",
]


@pytest.mark.parametrize("path", READS)
@pytest.mark.parametrize("kind", ["client", "member", "stranger"])
def test_both_lanes_answer_alike(readers: dict[str, Caller], path: str, kind: str) -> None:
    for _ in range(2):  # computed, and kept
        assert answer_of(readers[kind], "GET", path) == by_the_route(readers[kind], "GET", path)


@pytest.mark.parametrize("path", [BOARD, f"{RANK}?member=a&around=5", "/api/v1/pages/a/stats"])
def test_plain_reads_never_come_as_far_as_flask(app: Flask, admin: Caller, path: str) -> None:
    with paths_at_the_routes(app) as seen:
        first = admin("GET", path)
        again = admin("GET", path, headers={"If-None-Match": first.headers["ETag"]})
    assert (first.status_code, again.status_code, again.data) == (200, 304, b"")
    assert seen == []


@pytest.mark.parametrize(
    "path", [f"{BOARD}?metric=views", f"{RANK}?member=a&metric=views", f"{BOARD}?members=a&metric=views"]
)
def test_who_has_a_newer_version_than_redis_is_answered_by_postgres(admin: Caller, tenant: str, path: str) -> None:
    """As after a hang of Redis: another process has answered the newest version, which Redis has yet to get."""
    board = board_of(tenant, "tenant", Window.WEEK, "views")
    newest = admin("GET", path)
    with tenant_tx(tenant) as tx:
        raised = versions.advance(tx, [board], now=utcnow())[board].number
    behind = admin("GET", path)
    assert (behind.get_json()["source"], behind.get_json()["version"]) == ("redis", newest.get_json()["version"])
    tag = Answer.of_board(b"what another process has answered", version=raised).etag
    current = admin("GET", path, headers={"If-None-Match": tag})
    assert (current.status_code, current.get_json()["source"], current.get_json()["version"]) == (
        200,
        "postgres",
        raised,
    )
    again = admin("GET", path, headers={"If-None-Match": current.headers["ETag"]})
    assert again.status_code == 304


def test_a_kept_answer_is_not_given_to_who_may_not_see_it(client: FlaskClient, admin: Caller, tenant: str) -> None:
    stranger = user_of(client, tenant, sees_private=False)
    for path in (f"{BOARD}?scope=tenant", f"{RANK}?member=c&scope=tenant", "/api/v1/pages/c/stats"):
        assert admin("GET", path).status_code == 200
        assert stranger("GET", path).status_code in {403, 404}
    other = client_of(client, tenant, "events:write")
    assert other("GET", BOARD).status_code == 403
    assert Caller(client, tenant, "nonsense", "")("GET", BOARD).status_code == 401


def test_a_kept_answer_ends_with_the_board_it_shows(admin: Caller, tenant: str) -> None:
    def values() -> list[float]:
        return [item["value"] for item in admin("GET", f"{BOARD}?metric=views").get_json()["items"]]

    assert values() == [3, 2, 1]
    assert admin("POST", "/api/v1/pages/a/views").status_code == 202
    projection.project_all(tenant, now=utcnow)
    eventually(lambda: values() == [3, 2, 2])


def test_a_rank_follows_a_page_that_was_deleted_and_made_again(admin: Caller, tenant: str) -> None:
    path = f"{RANK}?member=a&metric=views"

    def rank() -> Any:
        answer = admin("GET", path)
        return answer.get_json().get("rank") if answer.status_code == 200 else answer.status_code

    eventually(lambda: rank() == 3)
    assert admin("DELETE", "/api/v1/pages/a").status_code == 204
    projection.project_all(tenant, now=utcnow)
    eventually(lambda: rank() == 404)
    make_page(admin, "a")
    for _ in range(9):
        assert admin("POST", "/api/v1/pages/a/views").status_code == 202
    projection.project_all(tenant, now=utcnow)
    eventually(lambda: rank() == 1)


def test_a_row_shows_the_new_title_of_its_page(admin: Caller, tenant: str) -> None:
    def title() -> str:
        return str(admin("GET", f"{BOARD}?metric=views&limit=1").get_json()["items"][0]["page"]["title"])

    before = title()
    page = {"space": "docs", "title": f"not {before}", "url": "/c"}
    assert admin("PUT", "/api/v1/pages/c", json=page).status_code == 200
    projection.project_all(tenant, now=utcnow)
    eventually(lambda: title() == f"not {before}")


@pytest.mark.parametrize("text", ["a=%41", "a=1&a=2", "a", "a=", "=1", "a=1&", "A=1", "a=1;b=2", "a=+"])
def test_a_query_that_needs_decoding_is_the_routes_to_read(text: str) -> None:
    assert plain_query(text) is None


def test_a_plain_query_is_read_as_it_is() -> None:
    assert plain_query("") == {}
    assert plain_query("scope=space:docs&limit=10") == {"scope": "space:docs", "limit": "10"}
