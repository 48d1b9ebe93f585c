"""`plaudit import`: what it says, and which files it touches. (Counting: tests/analytics/ingest/test_imports.py.)"""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from sqlalchemy import text

from analytics import locks
from analytics.boards import projection
from analytics.ingest import imports
from app.run.data_folder import Addresses
from tenants.db import tenant_tx, utcnow
from tests.analytics.conftest import views_of
from tests.app.cli.conftest import Run, env_of
from tests.service import PLAUDIT, own_servers_env

_OLD_ROW = text("""
    INSERT INTO outbox (tenant_id, kind, member, marked_at) VALUES (:t, 'page', '1', now() - interval '3 minutes')
    RETURNING id
""")
VIEW = '{"type": "view", "page": "home"}'


def test_odd_files(tenant: str, page: str, tmp_path: Path, on_ours: Run) -> None:
    empty = tmp_path / "empty.ndjson"
    empty.touch()
    assert "0 accepted" in on_ours("import", tenant, str(empty)).stdout
    no_newline = tmp_path / "n.ndjson"
    no_newline.write_bytes(f"{VIEW}\r\n\n{VIEW}".encode())
    report = json.loads(on_ours("import", tenant, str(no_newline), "--json").stdout)
    assert (report["accepted"], report["rejected"], report["lines"]) == (2, 0, 3)
    assert on_ours("import", "nobody", str(empty)).returncode == 1
    assert on_ours("import", tenant, str(tmp_path / "none")).returncode == 2


@pytest.mark.parametrize("kind", ["symlink", "hard link", "pipe", "other text"])
def test_rejects_are_written_to_nothing_that_was_put_in_their_place(
    kind: str, tenant: str, page: str, tmp_path: Path, on_ours: Run
) -> None:
    """Whoever may write to the folder must not choose what an import (of root's, perhaps) overwrites or removes."""
    file = tmp_path / "events.ndjson"
    file.write_text(f"{VIEW}\nbad\n")
    rejects, victim = tmp_path / "events.ndjson.rejects.ndjson", tmp_path / "victim"
    victim.write_text("" if kind == "symlink" else "precious\n")
    if kind == "symlink":
        rejects.symlink_to(victim)
    elif kind == "hard link":
        rejects.hardlink_to(victim)
    elif kind == "pipe":
        os.mkfifo(rejects)
    else:
        rejects.write_text("precious\n")
    before = victim.read_text()
    done = on_ours("import", tenant, str(file))
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert "--rejects" in done.stderr
    assert victim.read_text() == before
    assert kind != "other text" or rejects.read_text() == "precious\n"
    assert views_of(tenant) == 0
    elsewhere = tmp_path / "elsewhere"
    done = on_ours("import", tenant, str(file), "--rejects", str(elsewhere))
    assert "1 accepted, 0 duplicates, 1 rejected" in done.stdout, done.stderr
    assert elsewhere.stat().st_mode & 0o777 == 0o600


def test_an_import_removes_and_empties_no_file_but_its_own_rejects(
    tenant: str, page: str, tmp_path: Path, on_ours: Run
) -> None:
    file, notes = tmp_path / "events.ndjson", tmp_path / "notes"
    file.write_text(f"{VIEW}\n")
    itself = on_ours("import", tenant, str(file), "--rejects", str(file))
    assert itself.returncode == 1
    assert "is the file to import" in itself.stderr
    assert file.read_text()
    assert on_ours("import", tenant, str(file)).returncode == 0
    assert not file.with_name("events.ndjson.rejects.ndjson").exists(), "nothing was refused"
    notes.write_text("precious\n")
    again = on_ours("import", tenant, str(file), "--rejects", str(notes))
    assert (again.returncode, again.stdout) == (1, "")
    assert "something else than rejected lines" in again.stderr
    assert notes.read_text() == "precious\n"


def test_an_import_that_cannot_write_its_rejects_reads_nothing(tenant: str, tmp_path: Path, on_ours: Run) -> None:
    """Hashing a large file takes long. This one is a pipe that nobody writes to: reading it takes for ever."""
    pipe = tmp_path / "events.ndjson"
    os.mkfifo(pipe)
    refused = on_ours("import", tenant, str(pipe), "--rejects", str(tmp_path / "nowhere" / "rejects"))
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "nowhere/rejects cannot be written (No such file or directory)" in refused.stderr


def test_an_import_shows_how_far_boards_are_behind_and_waits(
    tenant: str, page: str, tmp_path: Path, addresses: Addresses
) -> None:
    lines = 3 * imports.CHUNK_LINES
    file = tmp_path / "events.ndjson"
    file.write_text(f"{VIEW}\n" * lines)
    projection.project_all(tenant, now=utcnow)
    command = [*PLAUDIT, "--data-dir", str(tmp_path), "import", tenant, str(file)]
    ours, terminal = os.openpty()
    with tenant_tx(tenant, separate=True) as projecting:
        locks.lock_boards(projecting, tenant)
        with tenant_tx(tenant) as tx:
            tx.run(_OLD_ROW, {"t": tenant})
        env = own_servers_env() | env_of(addresses) | {"TERM": "xterm", "COLUMNS": "150"}
        process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=terminal)
        os.close(terminal)
        shown = read_until(ours, r"boards 1[89][0-9] s behind")
        assert f"{imports.CHUNK_LINES}/{lines}" in shown
        assert views_of(tenant) == imports.CHUNK_LINES, "it waits after the first chunk"
    shown = read_until(ours, None)
    out, _ = process.communicate(timeout=60)
    assert (process.returncode, f"{lines:,} accepted" in out.decode()) == (0, True), shown
    assert views_of(tenant) == lines


def read_until(terminal: int, pattern: str | None) -> str:
    """What is shown until the pattern is, or until the end."""
    shown = ""
    while pattern is None or not re.search(pattern, shown):
        try:
            shown += os.read(terminal, 4096).decode(errors="replace")
        except OSError:  # the other side is closed
            assert pattern is None, shown
            return shown
    return shown
