"""Where a command finds its database, and how it says what is wrong."""

import contextlib
import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.engine import make_url

from app.cli.common import clear_errors, progress, show_table
from app.run.data_folder import Addresses
from app.settings import Settings
from tenants import registry
from tenants.db import owner_tx, utcnow
from tenants.engines import make_engine
from tests.app.cli.conftest import Run
from tests.conftest import reachable_folder
from tests.outages import read_only
from tests.service import plaudit


def test_servers_are_started_for_the_moment_and_only_where_there_is_a_plaudit() -> None:
    with reachable_folder() as path:
        folder = path / "data"
        nowhere = plaudit("check", data_dir=folder)
        assert (nowhere.returncode, folder.exists()) == (1, False), "in the wrong folder no empty Plaudit is made"
        assert f"There is no Plaudit in {folder}" in nowhere.stderr
        assert "from nothing to" in plaudit("migrate", data_dir=folder).stdout
        not_here = path / "not-this-one"
        listed = plaudit("tenant", "list", "--data-dir", str(folder), data_dir=not_here)
        assert "no tenant yet" in listed.stdout, "--data-dir is also accepted after the command"
        assert not not_here.exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("client", "create", "nobody", "--scopes", "admin"), "There is no tenant 'nobody'"),
        (("client", "create", "one", "--scopes", "everything"), "scopes: one or more of"),
        (("client", "revoke", "one", "one.123"), "Not found"),
        (("key", "create", "one", "--origin", "wiki.example/x"), "origins: 1 to 50"),
        (("user", "create", "one", "x"), "username: 3 to 50"),
        (("user", "role", "one", "nobody", "admin"), "There is no user 'nobody'"),
    ],
)
def test_a_mistake_is_said_in_one_line(connected: None, on_ours: Run, arguments: tuple[str, ...], said: str) -> None:
    with contextlib.suppress(registry.TenantExists), owner_tx() as tx:
        registry.create(tx, "one", name="One", now=utcnow())
    answer = on_ours(*arguments)
    assert answer.returncode == 1
    assert answer.stderr.startswith(f"plaudit: {said}"), answer.stderr
    assert len(answer.stderr.splitlines()) == 1


def test_a_database_that_was_not_migrated_is_said_in_one_line(servers: Addresses, tmp_path: Path) -> None:
    url = make_url(servers.database_url).set(database="postgres").render_as_string(hide_password=False)
    answer = plaudit("tenant", "list", data_dir=tmp_path, env={"DATABASE_URL": url})
    assert answer.returncode == 1
    assert "run plaudit migrate" in answer.stderr
    assert len(answer.stderr.splitlines()) == 1


def test_a_read_only_database_is_said_in_one_line(settings: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    engine = make_engine(read_only(settings.database_url), pool_size=1)
    with pytest.raises(SystemExit), clear_errors(), engine.begin() as connection:
        connection.execute(text("CREATE TABLE never ()"))
    said = capsys.readouterr().err
    assert said.startswith("plaudit: The database is read-only")
    assert len(said.splitlines()) == 1


def test_a_bug_keeps_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError), clear_errors():
        _ = 1 / 0


def test_a_reader_that_went_away_is_no_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended, clear_errors():
        raise BrokenPipeError
    assert (ended.value.code, capsys.readouterr().err) == (1, "")


def test_results_are_json_or_a_table_and_an_empty_table_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"id": "a", "last_used_at": None, "at": datetime(2026, 1, 2, tzinfo=UTC)}]
    columns = ("id", "last_used_at")
    show_table(rows, as_json=True, columns=columns, empty="none")
    assert json.loads(capsys.readouterr().out) == [{"id": "a", "last_used_at": None, "at": "2026-01-02 00:00:00+00:00"}]
    show_table(rows, as_json=False, columns=columns, empty="none")
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [["id", "last", "used", "at"], ["a"]]
    show_table([], as_json=False, columns=columns, empty="none")
    assert capsys.readouterr().out == "none\n"
    show_table([], as_json=True, columns=columns, empty="none")
    assert capsys.readouterr().out == "[]\n"


@pytest.mark.parametrize(("total", "shown"), [(100_000, "500/100000"), (None, "500/?")])
def test_progress_is_shown_with_what_is_waited_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, total: int | None, shown: str
) -> None:
    monkeypatch.setenv("COLUMNS", "150")
    for quiet in (False, True):
        with progress("pages", total, quiet=quiet, verb="Taking off boards") as watch:
            watch(500, "boards 70 s behind")
        said = capsys.readouterr().err
        assert [part in said for part in ("Taking off boards", shown, "boards 70 s behind")] == [not quiet] * 3
