"""Nobody starves: a tenant's backlog makes way for other tenants after each step, and for a stop (one worker)."""

import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from rq import Queue
from sqlalchemy import text

from analytics import outbox, wake
from analytics.boards import planning, projection
from analytics.outbox import Kind
from tenants import queue as tenants_queue
from tenants.db import tenant_tx, utcnow
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
