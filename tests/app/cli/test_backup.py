"""`plaudit backup` and `plaudit restore`: what they ask and say. (What is restored: tests/app/run/test_backups.py.)"""

import json
from pathlib import Path

from click.testing import CliRunner

from app.cli import cli
from tests.app.cli.conftest import Run


def test_a_backup_says_its_file_and_size(tenant: str, on_ours: Run, tmp_path: Path) -> None:
    file = tmp_path / "plaudit.backup"
    wrote = on_ours("backup", str(file), "--json")
    assert json.loads(wrote.stdout) == {"file": str(file), "bytes": file.stat().st_size}, wrote.stderr


def test_restore_asks_before_it_replaces(tenant: str, on_ours: Run, tmp_path: Path) -> None:
    file = tmp_path / "b"
    file.touch()  # it asks before it opens the file
    asked = on_ours("restore", str(file))
    assert asked.returncode == 1
    assert "Replace all of it?" in asked.stdout
    for said in (asked.stderr, " ".join(CliRunner().invoke(cli, ["restore", "--help"]).stdout.split())):
        assert "runs as the owner of the database" in said
    unasked = on_ours("restore", str(file), "--yes")
    assert "Replace all of it?" not in unasked.stdout
    assert unasked.stderr == f"plaudit: {file} is not a backup of Plaudit\n"
