"""Totals and trends: they add up, slow answers are cached within bounds, and quick ones are never old."""

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import psycopg
import pytest
from flask.testing import FlaskClient

from analytics.boards import overviews, projection
from analytics.boards.names import board_of
from analytics.metrics import VIEWS
from analytics.windows import Window
from app.api import overview
from app.http.answer_cache import Answer
from app.settings import Settings
from tenants.db import utcnow
from tests.people import client_of


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
    client: FlaskClient, tenant: str, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    wiki = client_of(client, tenant)
    for name, visibility in (("a", "private"), ("b", "public")):
        body = {"space": "docs", "title": name, "url": f"/{name}", "visibility": visibility}
        assert wiki("PUT", f"/api/v1/pages/{name}", json=body).status_code == 201
        wiki("POST", f"/api/v1/pages/{name}/views")
    projection.project_all(tenant, now=utcnow)
    with psycopg.connect(str(settings.database_url)) as blocking:
        blocking.execute("LOCK TABLE page_views_hour IN ACCESS EXCLUSIVE MODE")
        monkeypatch.setattr(overviews, "MAX_TREND_MS", 200)
        found = wiki("GET", "/api/v1/overview?window=7d").get_json()
        public = wiki("GET", "/api/v1/overview?scope=public:docs&window=7d").get_json()
    assert found["views"] == {"total": 2, "previous": None, "points": []}
    assert public["views"] == {"total": 1, "previous": None, "points": []}
    assert found["likes"]["points"]


@pytest.mark.parametrize("query", ["scope=global", "scope=users", "scope=nonsense", "window=2d", "x=1"])
def test_an_overview_of_nothing_is_refused(client: FlaskClient, tenant: str, query: str) -> None:
    assert client_of(client, tenant)("GET", f"/api/v1/overview?{query}").status_code == 422
