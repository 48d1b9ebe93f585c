"""A server with bad settings is found out; the tests' own has fsync off, to be quick."""

from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy.engine import make_url

from app.doctor import postgres
from app.doctor.findings import Level
from app.doctor.installation import Installation
from app.settings import Settings
from tenants import db
from tenants.db import utcnow
from tests.app.doctor.conftest import bad, execute


def test_a_server_that_cannot_be_reached_is_a_problem(scratch: Installation) -> None:
    assert list(postgres.reachable(scratch)) == []
    db.configure(service_url=None, owner_url="postgresql://plaudit@127.0.0.1:1/plaudit")
    ((level, what),) = bad(postgres.reachable(scratch))
    assert (level, "cannot be reached" in what) == (Level.PROBLEM, True)


def test_a_direct_address_of_another_database_is_a_problem(scratch: Installation, settings: Settings) -> None:
    def found(direct: str | None) -> list[tuple[Level, str]]:
        changed = replace(scratch.settings, direct_database_url=direct)
        return bad(postgres.direct_address(replace(scratch, settings=changed)))

    assert found(None) == found(scratch.settings.database_url) == []
    ((level, what),) = found(settings.database_url)
    assert (level, "leads to another database" in what) == (Level.PROBLEM, True)
    ((level, what),) = found("postgresql://plaudit@127.0.0.1:1/plaudit")
    assert (level, "PLAUDIT_DIRECT_DATABASE_URL" in what) == (Level.PROBLEM, True)


def test_the_version_is_new_enough(scratch: Installation, monkeypatch: pytest.MonkeyPatch) -> None:
    assert bad(postgres.supported_version(scratch)) == []
    monkeypatch.setattr(postgres, "MIN_VERSION", 99)
    assert [level for level, _ in bad(postgres.supported_version(scratch))] == [Level.PROBLEM]


def test_a_commit_that_is_not_durable_is_found_for_each_login(scratch: Installation) -> None:
    def unsafe() -> list[str]:
        found = bad(postgres.durability(scratch))
        assert {level for level, _ in found} <= {Level.PROBLEM}
        return [what for _, what in found if what.startswith("synchronous_commit")]

    assert unsafe() == []
    name = make_url(scratch.settings.database_url or "").database
    execute(f"ALTER DATABASE {name} SET synchronous_commit = off")
    (what,) = unsafe()
    assert "DATABASE_URL" in what
    assert ("PLAUDIT_SERVICE_DATABASE_URL" in what) is bool(scratch.settings.service_database_url)


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [("work_mem", "64kB", "64kB"), ("random_page_cost", "4", "4"), ("jit", "on", "on"), ("work_mem", "1GB", "1GB")],
)
def test_a_setting_that_makes_it_slow_is_named(scratch: Installation, name: str, value: str, shown: str) -> None:
    database = make_url(scratch.settings.database_url or "").database
    execute(f"ALTER DATABASE {database} SET {name} = '{value}'")
    db.dispose()  # new sessions have it
    assert (Level.WARN, f"{name} is {shown}") in bad(postgres.settings_for_speed(scratch))


def test_the_settings_of_the_local_server_are_fine(scratch: Installation) -> None:
    if not scratch.settings.service_database_url:
        pytest.skip("these are the operator's")
    assert bad(postgres.settings_for_speed(scratch)) == []
    assert bad(postgres.autovacuum(scratch)) == []
    assert bad(postgres.connections(scratch)) == []
    assert bad(postgres.clock(scratch)) == []


@pytest.mark.parametrize(
    ("setting", "unit", "number"),
    [("16384", "8kB", 128 * 2**20), ("4096", "kB", 4 * 2**20), ("15", "min", 900), ("2048", "MB", 2**31)],
)
def test_settings_are_compared_in_bytes_and_seconds(setting: str, unit: str, number: float) -> None:
    values = postgres.Values({"x": postgres._in_base_units(setting, unit)})
    assert values.number("x") == number


def test_a_server_that_does_not_say_which_it_is_is_warned_of(scratch: Installation) -> None:
    assert list(postgres.timeline(scratch)) == []
    execute("CREATE OR REPLACE FUNCTION current_server() RETURNS text LANGUAGE sql AS 'SELECT NULL'")
    ((level, what),) = bad(postgres.timeline(scratch))
    assert (level, "failover with loss is not noticed" in what) == (Level.WARN, True)


def test_the_formula_of_connections_is_that_of_the_documentation() -> None:
    with_service = Settings.from_env({"PLAUDIT_SERVICE_DATABASE_URL": "postgresql://a/b"})
    assert postgres.connections_needed(with_service, workers=2) == 80
    assert postgres.connections_needed(Settings.from_env({}), workers=2) == 86, "all processes have the owner's login"


def test_too_many_connections_for_the_server_are_said(scratch: Installation) -> None:
    many = replace(scratch, settings=replace(scratch.settings, web_processes=64))
    assert [level for level, _ in bad(postgres.connections(many))] == [Level.WARN]


@pytest.mark.parametrize(("differs_s", "level"), [(-30, Level.WARN), (300, Level.PROBLEM)])
def test_clocks_that_differ_are_said(
    scratch: Installation, monkeypatch: pytest.MonkeyPatch, differs_s: int, level: Level
) -> None:
    monkeypatch.setattr(postgres, "utcnow", lambda: utcnow() + timedelta(seconds=differs_s))
    ((found, what),) = bad(postgres.clock(scratch))
    assert (found, "clock differs" in what) == (level, True)
