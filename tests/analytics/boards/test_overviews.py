"""Overviews: the counts of a scope's pages as they are now, before and after they are projected."""

from datetime import timedelta

import psycopg
import pytest

from analytics.boards import overviews
from analytics.boards.names import board_of
from analytics.boards.overviews import Overview
from analytics.ingest.writes import EventKind, Item
from analytics.windows import WINDOWS
from app.settings import Settings
from tenants.db import tenant_tx, utcnow
from tests.analytics.boards.conftest import save_page_numbers
from tests.analytics.conftest import put_page, write_events


@pytest.fixture(autouse=True)
def pages(tenant: str) -> None:
    """A page with two views now and one of eight days ago, and a public one in another space with one view."""
    put_page(tenant, "a", space="eng")
    put_page(tenant, "b", space="ops", visibility="public")
    now = utcnow()
    moments = {"a": [now, now, now - timedelta(days=8)], "b": [now]}
    write_events(tenant, *(Item(EventKind.VIEW, page, at) for page, times in moments.items() for at in times))


def overview(tenant: str, scope: str, window: str, metric: str = "views") -> Overview:
    with tenant_tx(tenant) as tx:
        return overviews.read(tx, board_of(tenant, scope, WINDOWS[window], metric), now=utcnow())


@pytest.mark.parametrize(
    ("scope", "expected"),
    [("tenant", (3, 1)), ("space:eng", (2, 1)), ("space:none", (0, 0)), ("public", (1, 0)), ("public:eng", (0, 0))],
)
def test_it_has_the_counts_of_the_scopes_pages_before_they_are_projected(
    tenant: str, scope: str, expected: tuple[int, int]
) -> None:
    week = overview(tenant, scope, "7d")
    assert (week.total, week.previous) == expected
    assert sum(point.value for point in week.points) == week.total


def test_all_time_has_no_window_before(tenant: str) -> None:
    assert (overview(tenant, "space:eng", "all").total, overview(tenant, "space:eng", "all").previous) == (3, None)
    assert overview(tenant, "tenant", "all", "likes").total == 0


def test_what_takes_too_long_is_read_from_the_saved_numbers(
    tenant: str, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overviews, "MAX_TREND_MS", 200)
    save_page_numbers(tenant, put_page(tenant, "c", space="eng", visibility="public"), views_7d=70)
    save_page_numbers(tenant, put_page(tenant, "d", space="ops"), views_7d=7)
    with psycopg.connect(str(settings.database_url)) as blocking:
        blocking.execute("LOCK TABLE page_views_hour IN ACCESS EXCLUSIVE MODE")
        found = {scope: overview(tenant, scope, "7d") for scope in ("tenant", "space:ops", "public", "public:ops")}
    totals = {"tenant": 77, "space:ops": 7, "public": 70, "public:ops": 0}
    assert found == {scope: Overview(total) for scope, total in totals.items()}
