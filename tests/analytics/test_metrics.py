"""The table of metrics is the one place: everything else follows from an entry."""

import os
import subprocess
import sys

import pytest

from analytics.metrics import METRICS, counted_metrics, page_metrics, user_metrics
from app.settings import Settings
from tenants import redis as tenants_redis
from tests.service import ROOT


@pytest.mark.processes
@pytest.mark.usefixtures("connected")
def test_a_new_metric_is_one_entry_and_one_migration(settings: Settings) -> None:
    """Registered, filled, projected, read, checked and listed: the cases run in a process that knows the metric."""
    # The run empties this Redis when it starts, and creates a database of its own.
    env = {**os.environ, "DATABASE_URL": settings.database_url or "", "REDIS_URL": settings.redis_url or ""}
    env["PYTEST_XDIST_WORKER"] = "imaginary"  # its logs beside ours, and searched for secrets with them
    run = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "tests.analytics.imaginary.entry",
            "tests/analytics/imaginary/cases.py",
        ],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    # The global boards in Redis are of the run's database now, and not of ours.
    tenants_redis.boards().redis.flushdb()
    assert run.returncode == 0, run.stdout[-5000:]
    assert "9 passed" in run.stdout, run.stdout[-500:]


def test_every_metric_is_of_pages_or_of_users() -> None:
    assert set(METRICS.values()) == {*page_metrics(), *user_metrics()}
    assert set(counted_metrics()) < set(page_metrics())
