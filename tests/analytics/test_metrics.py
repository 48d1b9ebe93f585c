"""The table of metrics is the one place: everything else follows from an entry."""

import os
import subprocess
import sys
from urllib.parse import urlsplit

import pytest

from analytics.metrics import METRICS, counted_metrics, page_metrics, user_metrics
from app.settings import Settings
from tests.service import ROOT


@pytest.mark.processes
def test_a_new_metric_is_one_entry_and_one_migration(settings: Settings) -> None:
    """Registered, filled, projected, read, checked and listed: the cases run in a process that knows the metric."""
    # Another database of the same Redis, since a test run empties its own.
    redis_url = urlsplit(settings.redis_url or "")._replace(path="/7").geturl()
    env = {**os.environ, "DATABASE_URL": settings.database_url or "", "REDIS_URL": redis_url}
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
    assert run.returncode == 0, run.stdout[-5000:]
    assert "9 passed" in run.stdout, run.stdout[-500:]


def test_every_metric_is_of_pages_or_of_users() -> None:
    assert set(METRICS.values()) == {*page_metrics(), *user_metrics()}
    assert set(counted_metrics()) < set(page_metrics())
