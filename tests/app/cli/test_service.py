"""`plaudit migrate`, and the processes that `plaudit up` starts. (`up` itself: tests/faults/test_up.py.)"""

import json
from pathlib import Path

from migrations.head import head_revision
from tests.app.cli.conftest import Run
from tests.service import plaudit


def test_a_process_without_a_database_says_so(tmp_path: Path) -> None:
    for command in ("web", "worker"):
        said = plaudit(command, data_dir=tmp_path)
        assert said.returncode == 1
        assert "plaudit up" in said.stderr


def test_migrate_says_what_it_did(connected: None, on_ours: Run) -> None:
    assert "already" in on_ours("migrate").stdout
    assert json.loads(on_ours("migrate", "--json").stdout) == {"before": head_revision(), "after": head_revision()}
