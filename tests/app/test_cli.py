"""The commands, as a stranger runs them: servers are started for the moment."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import reachable_folder
from tests.service import plaudit


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with reachable_folder() as path:
        yield path / "data"


def test_every_command_has_help(folder: Path) -> None:
    top = plaudit("--help", data_dir=folder).stdout
    for command in ("up", "web", "live", "worker", "cron", "migrate", "backup", "restore", "tenant"):
        assert f"  {command}" in top
        told = plaudit(command, "--help", data_dir=folder)
        assert told.returncode == 0
        assert len(told.stdout.splitlines()) > 4


def test_tenants_are_made_listed_and_deleted(folder: Path) -> None:
    assert "no tenant yet" in plaudit("tenant", "list", data_dir=folder).stdout
    made = plaudit("tenant", "create", "acme", "--name", "Acme <wiki>", "--json", data_dir=folder)
    assert json.loads(made.stdout)["id"] == "acme", made.stderr
    again = plaudit("tenant", "create", "acme", "--name", "Acme", data_dir=folder)
    assert again.returncode == 1
    assert again.stderr == "plaudit: There is a tenant 'acme' already\n"
    bad = plaudit("tenant", "create", "A!", "--name", "x", data_dir=folder)
    assert bad.returncode == 1
    assert bad.stderr.startswith("plaudit: id: 2 to 63")
    assert "Acme <wiki>" in plaudit("tenant", "list", data_dir=folder).stdout
    assert plaudit("tenant", "delete", "acme", "--yes", data_dir=folder).returncode == 0
    assert json.loads(plaudit("tenant", "list", "--json", data_dir=folder).stdout) == []
    assert plaudit("tenant", "delete", "acme", "--yes", data_dir=folder).returncode == 1


def test_migrate_says_what_it_did(folder: Path) -> None:
    assert "already" in plaudit("migrate", data_dir=folder).stdout
    assert json.loads(plaudit("migrate", "--json", data_dir=folder).stdout)["after"]


def test_backup_wipe_restore_gives_the_same_data(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "plaudit.backup"
    for tenant_id in ("one", "two"):
        assert plaudit("tenant", "create", tenant_id, "--name", tenant_id, data_dir=folder).returncode == 0
    before = plaudit("tenant", "list", "--json", data_dir=folder).stdout
    wrote = plaudit("backup", str(file), data_dir=folder)
    assert wrote.returncode == 0, wrote.stderr
    assert file.stat().st_mode & 0o077 == 0, "a backup is private"

    wiped = folder.with_name("wiped")
    assert plaudit("tenant", "create", "stray", "--name", "stray", data_dir=wiped).returncode == 0
    restored = plaudit("restore", str(file), "--yes", data_dir=wiped)
    assert restored.returncode == 0, restored.stderr
    assert plaudit("tenant", "list", "--json", data_dir=wiped).stdout == before

    made = plaudit("tenant", "create", "three", "--name", "3", data_dir=wiped)
    assert made.returncode == 0, "the restored database takes writes"


def test_a_file_that_is_no_backup_changes_nothing(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "no.backup"
    file.write_bytes(b"PGDMP nonsense")
    before = plaudit("tenant", "list", "--json", data_dir=folder).stdout
    said = plaudit("restore", str(file), "--yes", data_dir=folder)
    assert said.returncode == 1
    assert "is not a backup" in said.stderr
    assert plaudit("tenant", "list", "--json", data_dir=folder).stdout == before


def test_restore_asks_before_it_replaces(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "b"
    plaudit("backup", str(file), data_dir=folder)
    assert plaudit("restore", str(file), data_dir=folder).returncode == 1


def test_a_process_without_a_database_says_so(folder: Path) -> None:
    for command in ("web", "worker"):
        said = plaudit(command, data_dir=folder)
        assert said.returncode == 1
        assert "plaudit up" in said.stderr
