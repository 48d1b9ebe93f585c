"""Nobody starves: a tenant's backlog makes way for other tenants after each step, and for a stop (one worker)."""

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from rq import Queue
from sqlalchemy import text

from analytics import outbox, wake
from analytics.boards import page_numbers, planning, projection, redis_store, snapshots
from analytics.boards.names import Board
from analytics.ingest.writes import EventKind, Item
from analytics.metrics import LIKES, VIEWS
from analytics.outbox import Kind
from analytics.quests import expiring
from analytics.windows import Window
from tenants import queue as tenants_queue
from tenants import redis
from tenants.db import tenant_tx, utcnow
from tests.analytics.conftest import put_page, write_events
from tests.secrets_seen import LOG_FOLDER
from tests.service import ROOT, eventually
from tests.workers.test_run import workers_env
from workers import jobs, turns

__all__ = ["workers_env"]

STEP = planning.MAX_MEMBERS_PER_STEP
LOG = LOG_FOLDER / "workers-turns.txt"


def make_backlog(tenant_id: str, steps: int) -> None:
    """Mark as many pages as stale as these steps project. (There are no such pages, which costs the same look-ups.)"""
    projection.project_all(tenant_id, now=utcnow)
    with tenant_tx(tenant_id) as tx:
        every = "SELECT number::text FROM generate_series(1, :last) number"
        outbox.mark_selected_stale(tx, Kind.PAGE, every, {"last": steps * STEP})


def waiting_rows(tenant_id: str) -> int:
    with tenant_tx(tenant_id) as tx:
        return int(tx.scalar(text("SELECT count(*) FROM outbox WHERE tenant_id = :t"), {"t": tenant_id}) or 0)


def tenants_in(queue: Queue) -> list[str]:
    return [job.args[0] for job in queue.jobs if job.args]


@pytest.fixture
def worker(workers_env: dict[str, str], queue: Queue) -> Iterator["subprocess.Popen[bytes]"]:
    """The only one. It is stopped until the test lets it run."""
    with LOG.open("a") as log:
        process = subprocess.Popen([sys.executable, "-m", "workers", "worker"], cwd=ROOT, env=workers_env, stdout=log)
    eventually(lambda: '"action":"worker.started"' in LOG.read_text())
    process.send_signal(signal.SIGSTOP)
    yield process
    process.kill()
    process.wait()


def test_a_job_makes_way_after_a_step_while_another_tenant_waits(tenant: str, other_tenant: str, queue: Queue) -> None:
    make_backlog(tenant, steps=3)
    wake.wake([other_tenant])
    jobs.project(tenant)
    assert waiting_rows(tenant) == 2 * STEP
    assert tenants_in(queue) == [other_tenant, tenant], "the rest is the next turn, behind those that wait"


def test_a_job_works_on_while_nobody_waits_until_its_turn_is_over(
    tenant: str, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_backlog(tenant, steps=3)
    with monkeypatch.context() as long:
        long.setattr(turns.Turn.__init__, "__defaults__", (60.0,))
        jobs.project(tenant)
    assert (waiting_rows(tenant), tenants_in(queue)) == (0, [])
    make_backlog(tenant, steps=3)
    with monkeypatch.context() as short:
        short.setattr(turns.Turn.__init__, "__defaults__", (0.0,))
        jobs.project(tenant)
    assert (waiting_rows(tenant), tenants_in(queue)) == (2 * STEP, [tenant])


def test_the_rest_of_a_turn_is_not_paused_for(tenant: str, queue: Queue) -> None:
    wake.job_finished(tenant, took_s=60, rows=1, more=True)
    assert tenants_in(queue) == [tenant]
    assert wake.wait_out_pause(tenant), "at once"


def test_a_step_reads_no_rows_of_other_kinds(tenant: str) -> None:
    """Its cost would grow with the backlog: with a million rows of pages, looking for other kinds took most of it."""
    make_backlog(tenant, steps=20)
    with tenant_tx(tenant) as tx:
        for kind in Kind:
            query, values = outbox.oldest(tenant, kind, limit=10)
            plan = [row[0] for row in tx.execute(text(f"EXPLAIN (ANALYZE, FORMAT TEXT) {query.text}"), values)]
            assert not [line for line in plan if "Rows Removed by Filter" in line], plan


def test_one_worker_projects_a_neighbour_in_the_middle_of_a_backlog(
    tenant: str, other_tenant: str, queue: Queue, worker: "subprocess.Popen[bytes]"
) -> None:
    steps = 60
    make_backlog(tenant, steps=steps)
    wake.wake([tenant])
    worker.send_signal(signal.SIGCONT)
    eventually(lambda: 0 < waiting_rows(tenant) < steps * STEP)
    make_backlog(other_tenant, steps=1)
    wake.wake([other_tenant])
    eventually(lambda: waiting_rows(other_tenant) == 0)
    assert waiting_rows(tenant) > 0, "the neighbour did not wait for the end of the backlog"
    eventually(lambda: waiting_rows(tenant) == 0)


def test_a_stop_is_obeyed_after_the_step_and_the_rest_is_left_to_others(
    tenant: str, queue: Queue, worker: "subprocess.Popen[bytes]"
) -> None:
    steps = 100
    make_backlog(tenant, steps=steps)
    wake.wake([tenant])
    worker.send_signal(signal.SIGCONT)
    eventually(lambda: 0 < waiting_rows(tenant) < steps * STEP)
    worker.terminate()
    worker.wait(10)
    assert waiting_rows(tenant) > 0
    assert tenant in tenants_in(queue), "for another worker"
    assert tenants_queue.depth() == len(queue.jobs)


def add_boards(tenant_id: str, spaces: int) -> None:
    """Boards of spaces that changed, and have no snapshot yet."""
    projection.project_all(tenant_id, now=utcnow)
    with tenant_tx(tenant_id) as tx:
        tx.run(
            text("""
                INSERT INTO boards (tenant_id, scope, time_window, metric, version, reserved, changed_at)
                SELECT t.id, 'space:s' || number, '7d', 'views', 1, 1, now()
                FROM tenants t CROSS JOIN generate_series(1, :spaces) number WHERE t.id = :t
            """),
            {"t": tenant_id, "spaces": spaces},
        )


def snapshots_of(tenant_id: str) -> int:
    with tenant_tx(tenant_id) as tx:
        return int(tx.scalar(text("SELECT count(*) FROM leaderboard_snapshots WHERE tenant_id = :t"), {"t": tenant_id}))


def test_a_stop_ends_snapshots_after_the_step_and_others_continue_them(
    tenant: str, queue: Queue, worker: "subprocess.Popen[bytes]", monkeypatch: pytest.MonkeyPatch
) -> None:
    spaces = 500
    add_boards(tenant, spaces)
    tenants_queue.enqueue("workers.jobs.refresh_snapshots")
    worker.send_signal(signal.SIGCONT)
    eventually(lambda: snapshots_of(tenant) > 0)
    worker.terminate()
    worker.wait(10)
    taken = snapshots_of(tenant)
    assert 0 < taken < spaces
    monkeypatch.setattr(snapshots, "MAX_RUN_S", 600.0)
    (rest,) = [job for job in queue.jobs if job.func_name == "workers.jobs.refresh_snapshots"]
    runs = [rest]
    while runs:
        queue.empty()  # type: ignore[no-untyped-call]
        jobs.refresh_snapshots(*runs[0].args)
        runs = [job for job in queue.jobs if job.func_name == "workers.jobs.refresh_snapshots"]
    assert snapshots_of(tenant) == spaces


def test_a_job_for_each_tenant_makes_way_and_continues_where_it_was(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although it finds the same tenants each time: some have claims that are not due yet."""
    left, visited = {"b": 3, "c": 2}, list[str]()

    def end_due(tenant_id: str, *, now: object, is_over: Callable[[], bool]) -> tuple[int, int]:
        while True:
            visited.append(tenant_id)
            left[tenant_id] = left.get(tenant_id, 1) - 1
            if left[tenant_id] <= 0 or is_over():
                return 1, 0

    monkeypatch.setattr(expiring, "tenants_with_due", lambda **_: ["c", "a", "b", "d"])
    monkeypatch.setattr(expiring, "end_due", end_due)
    monkeypatch.setattr(turns, "_others_wait", lambda: True)
    monkeypatch.setattr(jobs, "MIN_TURN_S", 0.0)
    runs, waiting = 0, [""]
    while waiting:
        queue.empty()  # type: ignore[no-untyped-call]
        jobs.end_due_quests(*waiting)
        runs += 1
        waiting = [argument for job in queue.jobs for argument in job.args]
    assert (visited, runs) == ([*"abbbccd"], 7)


def test_few_idle_tenants_are_visited_in_one_turn_though_others_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "_others_wait", lambda: True)
    assert turns.Turn().is_over()
    assert not turns.Turn(at_least_s=60).is_over()
    monkeypatch.setattr(turns, "_stop_requested", True)
    assert turns.Turn(at_least_s=60).is_over(), "a stop is obeyed at once"


PAGES = 60_000


def lose_large_boards(tenant_id: str) -> None:
    """Redis has lost the boards of very many pages. (The pages themselves are not looked at.)"""
    projection.project_all(tenant_id, now=utcnow)
    ones = ", ".join("1" for _ in page_numbers.COLUMNS)
    with tenant_tx(tenant_id) as tx:
        tx.run(
            text(f"""
                INSERT INTO page_stats (tenant_id, page_id, space_key, is_public, is_shared, page_updated_at,
                                        computed_at, {", ".join(page_numbers.COLUMNS)})
                SELECT t.id, number, 'eng', false, false, now(), now(), {ones}
                FROM tenants t CROSS JOIN generate_series(1, :pages) number WHERE t.id = :t
            """),
            {"t": tenant_id, "pages": PAGES},
        )
    with redis.boards().client() as client:
        client.delete(redis_store.ready_key(tenant_id))


def is_filling(tenant_id: str) -> bool:
    """Whether some of them are filled in part, and none of the largest is whole."""
    whole = redis_store.without_marker(redis.boards().redis, [board_of_all(tenant_id)]) == []
    return not whole and bool(redis.boards().redis.hget(board_of_all(tenant_id).filled_to, "position"))


def board_of_all(tenant_id: str) -> Board:
    return Board(tenant_id, "tenant", Window.WEEK, VIEWS)


def test_a_stop_ends_a_rebuild_after_the_step_and_another_worker_continues_it(
    tenant: str, queue: Queue, worker: "subprocess.Popen[bytes]"
) -> None:
    lose_large_boards(tenant)
    wake.wake([tenant])
    worker.send_signal(signal.SIGCONT)
    eventually(lambda: is_filling(tenant))
    worker.terminate()
    worker.wait(10)
    assert is_filling(tenant)
    assert tenant in tenants_in(queue), "for another worker"
    rows = redis.boards().redis.zcard(board_of_all(tenant).unfinished)
    projection.project_step(tenant, now=utcnow(), is_over=lambda: True)
    assert rows < redis.boards().redis.zcard(board_of_all(tenant).unfinished), "it does not begin again"
    projection.project_all(tenant, now=utcnow)
    assert redis.boards().redis.zcard(board_of_all(tenant).key) == PAGES
    assert tenant not in projection.stale_tenants(now=utcnow())


def test_one_worker_projects_a_neighbour_in_the_middle_of_a_rebuild(
    tenant: str, other_tenant: str, queue: Queue, worker: "subprocess.Popen[bytes]"
) -> None:
    projection.project_all(other_tenant, now=utcnow)
    put_page(other_tenant, "a")
    lose_large_boards(tenant)
    wake.wake([tenant])
    worker.send_signal(signal.SIGCONT)
    eventually(lambda: is_filling(tenant))
    write_events(other_tenant, Item(EventKind.LIKE, "a", utcnow(), user="ada"))
    wake.wake([other_tenant])
    likes = Board(other_tenant, "tenant", Window.WEEK, LIKES)
    eventually(lambda: redis.boards().redis.zcard(likes.key) == 1)
    assert not redis_store.is_complete(redis.boards().redis.get(redis_store.ready_key(tenant))), "it did not wait"
    eventually(lambda: redis.boards().redis.zcard(board_of_all(tenant).key) == PAGES)
