"""Rules of the code."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from flask import Flask

from app.http.rights import declared, public
from app.live.server import create_live_app
from app.settings import Settings
from workers import schedule

ROOT = Path(__file__).parents[2]


def undeclared(app: Flask) -> list[str]:
    rules = list(app.url_map.iter_rules())
    assert rules
    return [rule.rule for rule in rules if declared(app.view_functions[rule.endpoint]) is None]


def test_no_route_without_a_declared_auth(app: Flask, settings: Settings) -> None:
    assert undeclared(app) == []
    assert undeclared(create_live_app(settings)) == []


def test_the_auth_rule_notices_a_bare_route(own_app: Flask) -> None:
    own_app.add_url_rule("/bare", view_func=lambda: "", endpoint="bare")
    own_app.add_url_rule("/open", view_func=public(lambda: ""), endpoint="open")
    assert undeclared(own_app) == ["/bare"]


def test_scheduled_jobs_exist() -> None:
    assert schedule.SCHEDULE
    for entry in schedule.SCHEDULE:
        assert entry.seconds > 0
        assert callable(schedule.resolve(entry.job)), entry.job
    with pytest.raises(AttributeError):
        schedule.resolve("workers.jobs.not_there")


def test_imports_go_one_way() -> None:
    done = subprocess.run(
        [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def test_nothing_happens_at_import() -> None:
    """The modules import without any environment, and connect to nothing."""
    code = "import app.web, app.live, app.cli, workers.run, workers.jobs; print('imported')"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env={}, capture_output=True, text=True, check=False)
    assert done.stdout == "imported\n", done.stderr


def test_the_environment_is_read_in_one_place() -> None:
    """Settings are read in `app/settings.py`; what our processes start with is assembled in `app/run/environment.py`.

    `tenants/logs.py` asks for colours by itself: it stands below the settings.
    """
    packages = ("app", "analytics", "tenants", "workers", "migrations")
    files = [file for package in packages for file in (ROOT / package).rglob("*.py")]
    reading = {str(file.relative_to(ROOT)) for file in files if re.search(r"os\.(environ|getenv)", file.read_text())}
    assert reading == {"app/settings.py", "app/run/environment.py", "tenants/logs.py"}
