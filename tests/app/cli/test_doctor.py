"""`plaudit doctor`: what it prints, and its status. (What it finds: tests/app/doctor.)"""

import json
from pathlib import Path

from rq.worker_registration import REDIS_WORKER_KEYS

from tenants import redis
from tests.app.cli.conftest import Run
from tests.conftest import reachable_folder
from tests.service import copy_prepared, plaudit


def test_on_configured_servers_without_workers_it_says_so_and_exits_with_1(connected: None, on_ours_empty: Run) -> None:
    with redis.queue().client() as client:
        client.delete(REDIS_WORKER_KEYS)  # those of tests that kill workers
    done = on_ours_empty("doctor", "--json")
    assert done.returncode == 1, done.stderr
    report = json.loads(done.stdout)
    assert not report["ok"]
    assert report["problems"] > 0
    assert "There is no worker" in {finding["what"] for finding in report["findings"]}
    for finding in report["findings"]:
        assert finding.keys() == {"level", "about", "what", "why", "advice"}
        assert finding["level"] == "ok" or (finding["why"] and finding["advice"])
    text = on_ours_empty("doctor").stdout
    assert "✗ There is no worker\n      why: boards do not follow" in text
    assert text.splitlines()[-1].endswith("warnings.") or text.splitlines()[-1].endswith("warning.")


def test_on_a_stopped_data_folder_it_starts_the_servers_for_the_moment_and_changes_nothing() -> None:
    with reachable_folder() as path:
        folder: Path = copy_prepared(path / "data")
        done = plaudit("doctor", "--json", data_dir=folder)
        assert done.returncode == 0, done.stdout + done.stderr
        report = json.loads(done.stdout)
        assert report["ok"]
        assert "valkey" in report["versions"]
        whats = {finding["what"] for finding in report["findings"]}
        assert any(what.startswith("Plaudit is not running") for what in whats)
        assert any(what.startswith("Commits are durable") for what in whats)
        assert report["statements"], "the local server counts its statements"


def test_in_a_folder_without_plaudit_it_creates_nothing(tmp_path: Path) -> None:
    done = plaudit("doctor", data_dir=tmp_path / "data")
    assert (done.returncode, "There is no Plaudit in" in done.stderr) == (1, True)
    assert not (tmp_path / "data").exists()
