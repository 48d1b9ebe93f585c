"""Counts of a page by hour and day."""

from datetime import timedelta

from analytics.boards.series import Step
from tenants.db import utcnow
from tests.analytics.boards.conftest import MakeBoard, project, read
from tests.people import Caller


def test_stats_and_series_have_late_views_where_they_happened(
    board: MakeBoard, app_client: Caller, tenant: str
) -> None:
    board(a=3)
    late = (utcnow() - timedelta(days=3)).isoformat()
    app_client("POST", "/api/v1/pages/a/views", json={"occurred_at": late})
    app_client("PUT", "/api/v1/pages/a/likes/u1")
    project(tenant)
    stats = read(app_client, "/api/v1/pages/a/stats")
    assert stats["views"] == {"1d": 3, "7d": 4, "30d": 4, "all": 4}
    assert stats["likes"] == {"1d": 1, "7d": 1, "30d": 1, "all": 1}
    series = read(app_client, "/api/v1/pages/a/series?metric=views&step=day")["points"]
    assert (len(series), series[-1]["value"], series[-4]["value"], sum(p["value"] for p in series)) == (31, 3, 1, 4)
    hours = read(app_client, "/api/v1/pages/a/series?step=hour")["points"]
    assert (len(hours), hours[-1]["value"]) == (169, 3)
    assert sum(p["value"] for p in read(app_client, "/api/v1/pages/a/series?metric=likes")["points"]) == 1
    assert app_client("GET", "/api/v1/pages/a/series?from=2000-01-01T00:00:00Z").status_code == 422
    assert app_client("GET", "/api/v1/pages/a/series?metric=score").status_code == 422
    assert app_client("GET", "/api/v1/pages/nowhere/series").status_code == 404


def test_series_know_other_time_zones_and_bounds(board: MakeBoard, app_client: Caller) -> None:
    board(a=3)
    start = (utcnow() - timedelta(days=10)).strftime("%Y-%m-%dT00:00:00")
    far = (utcnow() + timedelta(days=2)).strftime("%Y-%m-%dT00:00:00Z")
    for offset, step in (("%2B02:00", "day"), ("%2B05:30", "hour"), ("-08:00", "day")):
        points = read(app_client, f"/api/v1/pages/a/series?step={step}&from={start}{offset}&to={far}")
        assert sum(point["value"] for point in points["points"]) == 3, offset
    for span in (
        "from=9999-12-31T22:00:00Z&to=9999-12-31T23:30:00Z",
        "to=0001-01-01T00:00:00Z",
        "from=0001-01-01T00:00:00%2B14:00",
    ):
        assert app_client("GET", f"/api/v1/pages/a/series?{span}").status_code == 422


def test_each_step_has_a_usual_window_that_it_divides() -> None:
    for step in Step:
        assert step.usual_window.length is not None
        assert step.usual_window.length % step.length == timedelta()
