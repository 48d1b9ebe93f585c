"""Boards that do not follow are found, and boards that do are not."""

import threading

import pytest
from sqlalchemy import text

from analytics.boards import intents, projection, snapshots
from analytics.ingest.writes import EventKind, Item
from analytics.outbox import Kind
from app.doctor import boards
from app.doctor.findings import Level
from app.doctor.installation import Installation
from tenants import redis as tenants_redis
from tenants.db import tenant_tx, utcnow
from tests.analytics.conftest import put_page, write_events
from tests.app.doctor.conftest import bad, execute
from tests.conftest import make_tenant


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boards, "MOVES_WITHIN_S", 0.5)
    monkeypatch.setattr(boards, "CHECK_EVERY_S", 0.05)


@pytest.fixture
def behind(scratch: Installation) -> str:
    """A tenant with a page that is not projected yet."""
    tenant_id = make_tenant()
    put_page(tenant_id, "home")
    return tenant_id


@pytest.fixture
def up_to_date(behind: str) -> str:
    projection.project_all(behind, now=utcnow)
    write_events(behind, Item(EventKind.VIEW, "home", utcnow()))
    projection.project_all(behind, now=utcnow)
    snapshots.refresh_all(now=utcnow())
    return behind


def test_boards_that_follow_are_fine(scratch: Installation, up_to_date: str) -> None:
    for check in (boards.slid_windows, boards.outbox, boards.intents, boards.in_redis, boards.snapshots):
        assert bad(check(scratch)) == [], check.__name__


def test_a_change_that_nobody_projects_is_a_problem(scratch: Installation, behind: str) -> None:
    ((level, what),) = bad(boards.outbox(scratch))
    assert (level, what.endswith(f"{behind} (1 rows)")) == (Level.PROBLEM, True)


def test_a_change_that_is_projected_meanwhile_is_fine(
    scratch: Installation, behind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boards, "MOVES_WITHIN_S", 60)
    worker = threading.Timer(0.2, lambda: projection.project_all(behind, now=utcnow))
    worker.start()
    assert bad(boards.outbox(scratch)) == []
    worker.join()


def test_many_changes_that_wait_are_said(scratch: Installation, behind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boards, "MAX_STALE_MEMBERS", 0)
    assert (Level.WARN, f"1 changes of {behind} wait to be projected") in bad(boards.outbox(scratch))


def test_what_a_projection_left_behind_is_found(scratch: Installation, up_to_date: str) -> None:
    with tenant_tx(up_to_date) as tx:
        tx.run(*intents.recording(up_to_date, Kind.PAGE, {"1": ["tenant"], "2": ["tenant"]}))
    ((level, what),) = bad(boards.intents(scratch))
    assert (level, what) == (Level.WARN, f"A projection has left 2 members of boards behind: of {up_to_date}")


def test_windows_that_do_not_move_are_a_problem(scratch: Installation, up_to_date: str) -> None:
    execute("UPDATE projections SET slid_to = (slid_to AT TIME ZONE 'UTC' - interval '3 hours') AT TIME ZONE 'UTC'")
    ((level, what),) = bad(boards.slid_windows(scratch))
    assert (level, up_to_date in what) == (Level.PROBLEM, True)


def test_boards_that_redis_lost_are_found(scratch: Installation, up_to_date: str) -> None:
    with tenants_redis.boards().client() as redis:
        redis.delete(f"lbv:{{lb:{up_to_date}:tenant:7d:views}}")
        assert bad(boards.in_redis(scratch)) == [
            (Level.WARN, f"1 boards are missing in Redis: lb:{up_to_date}:tenant:7d:views")
        ]
        redis.delete(f"lbr:{up_to_date}")
        assert bad(boards.in_redis(scratch)) == [(Level.WARN, f"Redis does not have all boards of {up_to_date}")]


def test_old_snapshots_are_said(scratch: Installation, up_to_date: str) -> None:
    execute(
        "UPDATE boards SET version = version + 1, changed_at = now() - interval '1 hour' WHERE scope = 'tenant'",
        "UPDATE leaderboard_snapshots SET taken_at = now() - interval '2 hours'",
    )
    with scratch.reading() as connection:
        changed = connection.scalar(text("SELECT count(*) FROM boards WHERE scope = 'tenant'"))
    assert changed
    assert bad(boards.snapshots(scratch)) == [
        (Level.WARN, f"{changed} boards changed up to 60 min ago and have no snapshot of it")
    ]
