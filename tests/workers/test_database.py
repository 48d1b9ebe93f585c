"""A worker or cron that could never do its jobs does not start. (What it waits for: tests/servers/test_workers.py.)"""

import subprocess
import sys

import pytest
from sqlalchemy.engine import make_url

from app.settings import Settings
from tests.service import ROOT, own_servers_env


def run_to_its_end(name: str, env: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "workers", name]
    return subprocess.run(
        command, cwd=ROOT, env=own_servers_env() | env, capture_output=True, text=True, check=False, timeout=60
    )


@pytest.mark.parametrize("name", ["worker", "cron"])
def test_without_the_owners_login_it_refuses_to_start(name: str, settings: Settings, connected: None) -> None:
    service = settings.service_database_url or settings.database_url or ""
    env = {"PLAUDIT_SERVICE_DATABASE_URL": service, "REDIS_URL": settings.redis_url or ""}
    said = run_to_its_end(name, env)
    assert (said.returncode, said.stdout) == (1, "")
    assert said.stderr == "plaudit: worker and cron need the owner's login: set DATABASE_URL\n"


@pytest.mark.parametrize("variable", ["DATABASE_URL", "PLAUDIT_SERVICE_DATABASE_URL"])
@pytest.mark.parametrize("wrong", [{"username": "nobody"}, {"password": "not-the-password"}, {"database": "nothing"}])
def test_a_login_that_is_refused_is_named_in_one_line(
    variable: str, wrong: dict[str, str], settings: Settings, connected: None
) -> None:
    given = {"DATABASE_URL": settings.database_url, "PLAUDIT_SERVICE_DATABASE_URL": settings.service_database_url}
    if given[variable] is None:
        pytest.skip("there is one login only")
    if "password" in wrong and settings.service_database_url is None:
        pytest.skip("the operator's server may ask for none")
    env = {name: value for name, value in given.items() if value} | {"REDIS_URL": settings.redis_url or ""}
    env[variable] = make_url(env[variable]).set(**wrong).render_as_string(hide_password=False)  # type: ignore[arg-type]
    said = run_to_its_end("worker", env)
    assert (said.returncode, said.stdout) == (1, "")
    (line,) = said.stderr.splitlines()
    assert line.startswith("plaudit: The database refuses the login (")
    assert line.endswith(f"check {variable}")
    assert "not-the-password" not in line
