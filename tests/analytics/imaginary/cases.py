"""What follows from one more entry in the table of metrics. Run by test_metrics.py, in a pytest of its own."""

from datetime import timedelta

import psycopg
import pytest
from flask.testing import FlaskClient
from sqlalchemy import text

from analytics import outbox
from analytics.boards import checking, projection, recomputing, snapshots
from analytics.boards.names import Board
from analytics.outbox import Kind
from analytics.windows import Window
from app.settings import Settings
from migrations.metric_columns import page_metric
from tenants import redis, rls
from tenants.db import tenant_tx, utcnow
from tests.analytics.conftest import make_page
from tests.analytics.imaginary.entry import IMAGINARY
from tests.people import Caller, client_of


@pytest.fixture(scope="session", autouse=True)
def migrated(settings: Settings) -> None:
    """The migration that the entry needs."""
    with psycopg.connect((settings.database_url or "").replace("+psycopg", "")) as owner:
        owner.execute("""
            CREATE TABLE page_imaginary (
                tenant_id text, page_id bigint, imagined_at timestamptz, PRIMARY KEY (tenant_id, page_id, imagined_at),
                FOREIGN KEY (tenant_id, page_id) REFERENCES pages (tenant_id, id) ON DELETE CASCADE)
        """)
        for statement in rls.isolate("page_imaginary"):
            owner.execute(statement)
        owner.execute("ALTER TABLE page_counters ADD COLUMN imaginary bigint NOT NULL DEFAULT 0")
        for statement in page_metric("imaginary", "bigint", [window.value for window in Window]):
            owner.execute(statement)


@pytest.fixture
def caller(client: FlaskClient, tenant: str) -> Caller:
    return client_of(client, tenant)


@pytest.fixture
def board(caller: Caller, tenant: str) -> Board:
    """Two pages: one imagined an hour and three days ago, one twice now. Projected."""
    now = utcnow()
    for name, ages in {
        "old": (timedelta(hours=1), timedelta(days=3)),
        "new": (timedelta(), timedelta(seconds=1)),
    }.items():
        make_page(caller, name, visibility="public")
        imagine(tenant, name, *(now - age for age in ages))
    projection.project_all(tenant, now=utcnow)
    return Board(tenant, "tenant", Window.DAY, IMAGINARY)


def imagine(tenant: str, page: str, *moments: object) -> None:
    """What ingest would do: rows, the counter, the outbox."""
    with tenant_tx(tenant) as tx:
        page_id = tx.scalar(text("SELECT id FROM pages WHERE external_id = :page"), {"page": page})
        for moment in moments:
            tx.execute(
                text("INSERT INTO page_imaginary VALUES (:tenant, :page, :at)"),
                {"tenant": tenant, "page": page_id, "at": moment},
            )
        tx.execute(
            text("UPDATE page_counters SET imaginary = imaginary + :n WHERE page_id = :page"),
            {"n": len(moments), "page": page_id},
        )
        outbox.mark_stale(tx, Kind.PAGE, [page_id])


@pytest.mark.parametrize(
    ("window", "expected"),
    [("1d", {"new": 2, "old": 1}), ("7d", {"new": 2, "old": 2}), ("all", {"new": 2, "old": 2})],
)
def test_it_has_boards(board: Board, caller: Caller, window: str, expected: dict[str, int]) -> None:
    answer = caller("GET", f"/api/v1/leaderboards?metric=imaginary&window={window}").get_json()
    assert {row["page"]["external_id"]: row["value"] for row in answer["items"]} == expected
    assert answer["source"] == "redis"


def test_it_is_read_from_snapshots_and_from_postgresql(board: Board, caller: Caller, tenant: str) -> None:
    path = "/api/v1/leaderboards?metric=imaginary&window=1d"
    client = redis.boards().redis
    client.delete(board.marker)
    from_postgres = caller("GET", path).get_json()
    assert (from_postgres["source"], [row["value"] for row in from_postgres["items"]]) == ("postgres", [2, 1])
    snapshots.refresh(tenant, now=utcnow())
    from_snapshot = caller("GET", f"{path}&limit=2").get_json()
    assert (from_snapshot["source"], [row["value"] for row in from_snapshot["items"]]) == ("snapshot", [2, 1])


def test_check_covers_it_and_a_rebuild_repairs_it(board: Board, tenant: str) -> None:
    assert checking.check(tenant, now=utcnow()).differences == []
    redis.boards().redis.zincrby(board.key, 5, "1000000")
    with tenant_tx(tenant) as tx:
        tx.execute(text("UPDATE page_stats SET imaginary_1d = 77, imaginary_all = 78"))
        tx.execute(text("UPDATE page_counters SET imaginary = 79"))
    where = {difference.where for difference in checking.check(tenant, now=utcnow()).differences}
    assert {board.key, "page_stats.imaginary_1d", "page_stats.imaginary_all"} <= where
    recomputing.recompute_tenant(tenant, now=utcnow, progress=lambda _n: None)
    assert checking.check(tenant, now=utcnow()).differences == []


def test_it_leaves_a_window_as_time_passes(board: Board, tenant: str) -> None:
    projection.project_all(tenant, now=lambda: utcnow() + timedelta(hours=25))
    assert redis.boards().redis.zcard(board.key) == 0


def test_it_has_a_series_and_stats_and_a_total(board: Board, caller: Caller) -> None:
    series = caller("GET", "/api/v1/pages/new/series?metric=imaginary&step=day").get_json()
    assert sum(point["value"] for point in series["points"]) == 2
    assert caller("GET", "/api/v1/pages/old/stats").get_json()["imaginary"] == {"1d": 1, "7d": 2, "30d": 2, "all": 2}
    assert caller("GET", "/api/v1/overview?window=1d").get_json()["imaginary"]["total"] == 3
    assert [space["imaginary_7d"] for space in caller("GET", "/api/v1/spaces").get_json()["items"]] == [4]


def test_the_api_lists_it(client: FlaskClient) -> None:
    paths = client.get("/api/openapi.json").get_json()["paths"]
    for path in ("/api/v1/leaderboards", "/api/v1/pages/{external_id}/series"):
        (metric,) = [one for one in paths[path]["get"]["parameters"] if one.get("name") == "metric"]
        assert "imaginary" in metric["schema"]["enum"]


def test_the_dashboard_and_the_widgets_show_it(client: FlaskClient, board: Board, caller: Caller) -> None:
    assert '"label": "Imaginary"' in client.get("/dashboard").text.replace('":"', '": "')
    key = caller("POST", "/api/v1/keys", json={"name": "k", "origins": ["https://wiki.example"]}).get_json()["key"]
    assert ">2<" in client.get(f"/embed/badge/new.svg?key={key}&metric=imaginary").text
