"""`plaudit import`: streams, goes on after an interruption, and never counts twice."""

import json
import os
import signal
import subprocess
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from analytics.ingest import imports
from analytics.ingest.events import Ages
from app.settings import Settings
from tenants.db import tenant_tx, utcnow
from tests.analytics.conftest import make_page, views_of
from tests.people import Caller
from tests.service import PLAUDIT, ROOT, own_servers_env, plaudit

Run = Callable[..., CompletedProcess[str]]


@pytest.fixture
def env(settings: Settings) -> dict[str, str]:
    named = {"DATABASE_URL": settings.database_url or "", "REDIS_URL": settings.redis_url or ""}
    if settings.service_database_url:
        named["PLAUDIT_SERVICE_DATABASE_URL"] = settings.service_database_url
    return named


def write(file: Path, lines: list[object]) -> Path:
    file.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return file


def test_a_file_is_counted_once_and_its_bad_lines_are_kept(
    sender: Caller, tenant: str, page: str, tmp_path: Path, env: dict[str, str]
) -> None:
    long_ago = (utcnow() - timedelta(days=300)).isoformat()
    lines: list[object] = [{"type": "view", "page": page, "occurred_at": long_ago} for _ in range(2500)]
    lines[7] = "this is not JSON"
    lines[8] = ""
    lines[1999] = {"type": "view", "page": "nowhere"}
    file = write(tmp_path / "history.ndjson", lines)
    done = plaudit("import", tenant, str(file), "--json", data_dir=tmp_path, env=env)
    assert done.returncode == 1, "some lines were refused"
    told = json.loads(done.stdout)
    assert (told["accepted"], told["rejected"], told["lines"]) == (2497, 2, 2500)
    rejects = [json.loads(line) for line in Path(told["rejects"]).read_text().splitlines()]
    assert [(r["line"], r["code"]) for r in rejects] == [(8, "invalid"), (2000, "unknown_page")]
    assert rejects[0]["detail"].startswith("not JSON")
    assert views_of(tenant) == 2497

    again = plaudit("import", tenant, str(file), data_dir=tmp_path, env=env)
    assert "nothing was added" in again.stdout
    renamed = file.rename(tmp_path / "other-name.ndjson")
    assert "nothing was added" in plaudit("import", tenant, str(renamed), data_dir=tmp_path, env=env).stdout
    assert views_of(tenant) == 2497

    def retry(file: str) -> dict[str, object]:
        found: dict[str, object] = json.loads(
            plaudit("import", tenant, file, "--json", data_dir=tmp_path, env=env).stdout
        )
        return found

    early = retry(told["rejects"])
    assert (early["accepted"], early["rejected"]) == (0, 2)
    make_page(sender, "nowhere")
    second = retry(told["rejects"])
    assert (second["accepted"], second["rejected"]) == (1, 1), "what counted nothing can be tried again"
    assert views_of(tenant, "nowhere") == 1
    (left,) = Path(str(second["rejects"])).read_text().splitlines()
    assert json.loads(left)["event"] == "this is not JSON", "never wrapped twice"


def test_an_interrupted_import_goes_on_where_it_stopped(
    sender: Caller, tenant: str, page: str, tmp_path: Path, env: dict[str, str]
) -> None:
    total = 20_000
    file = write(tmp_path / "big.ndjson", [{"type": "view", "page": page}] * (total - 1) + ["bad"])
    command = [*PLAUDIT, "--data-dir", str(tmp_path), "import", tenant, str(file)]
    interrupted = 0
    for _ in range(4):
        before = views_of(tenant)
        process = subprocess.Popen(command, cwd=ROOT, env=own_servers_env() | env, stderr=subprocess.DEVNULL)
        while process.poll() is None and views_of(tenant) < before + 3000:
            pass
        interrupted += process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert interrupted >= 2
    done = plaudit("import", tenant, str(file), "--json", data_dir=tmp_path, env=env)
    told = json.loads(done.stdout)
    assert (told["accepted"], told["rejected"]) == (total - 1, 1)
    assert views_of(tenant) == total - 1
    assert len(Path(told["rejects"]).read_text().splitlines()) == 1


def test_two_imports_of_one_file_at_once_do_not_count_twice(
    tenant: str, sender: Caller, page: str, tmp_path: Path
) -> None:
    file = write(tmp_path / "f.ndjson", [{"type": "view", "page": page}] * 3000)
    file_hash, lines = imports.hash_file(file)
    assert lines == 3000
    now = utcnow()
    with tenant_tx(tenant) as tx:
        imports.begin(tx, file_hash, name="f", now=now)
    ages = Ages.for_caller(now, backfill_days=400)
    one = imports.run(tenant, file, file_hash, lines_done=0, ages=ages, now=now)
    two = imports.run(tenant, file, file_hash, lines_done=0, ages=ages, now=now)
    next(one)
    with pytest.raises(imports.ImportRunning):
        next(two)
    assert [chunk.lines_done for chunk in one] == [2000, 3000]
    assert views_of(tenant) == 3000


def test_odd_files(tenant: str, sender: Caller, tmp_path: Path, env: dict[str, str]) -> None:
    make_page(sender, "home")
    empty = write(tmp_path / "empty.ndjson", [])
    assert "0 accepted" in plaudit("import", tenant, str(empty), data_dir=tmp_path, env=env).stdout
    no_newline = tmp_path / "n.ndjson"
    no_newline.write_bytes(b'{"type":"view","page":"home"}\r\n\n{"type":"view","page":"home"}')
    told = json.loads(plaudit("import", tenant, str(no_newline), "--json", data_dir=tmp_path, env=env).stdout)
    assert (told["accepted"], told["rejected"], told["lines"]) == (2, 0, 3)
    assert plaudit("import", "nobody", str(empty), data_dir=tmp_path, env=env).returncode == 1
    assert plaudit("import", tenant, str(tmp_path / "none"), data_dir=tmp_path, env=env).returncode == 2


@pytest.mark.parametrize("kind", ["symlink", "hard link", "pipe", "other text"])
def test_rejects_are_written_to_nothing_that_was_put_in_their_place(
    kind: str, tenant: str, sender: Caller, page: str, tmp_path: Path, env: dict[str, str]
) -> None:
    """Whoever may write to the folder must not choose what an import (of root's, perhaps) overwrites or removes."""
    file = write(tmp_path / "events.ndjson", [{"type": "view", "page": page}, "bad"])
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
    done = plaudit("import", tenant, str(file), data_dir=tmp_path, env=env)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert "--rejects" in done.stderr
    assert victim.read_text() == before
    assert kind != "other text" or rejects.read_text() == "precious\n"
    assert views_of(tenant) == 0
    elsewhere = tmp_path / "elsewhere"
    done = plaudit("import", tenant, str(file), "--rejects", str(elsewhere), data_dir=tmp_path, env=env)
    assert "1 accepted, 0 duplicates, 1 rejected" in done.stdout, done.stderr
    assert elsewhere.stat().st_mode & 0o777 == 0o600


def test_an_import_removes_and_empties_no_file_but_its_own_rejects(
    tenant: str, sender: Caller, page: str, tmp_path: Path, env: dict[str, str]
) -> None:
    file, notes = write(tmp_path / "events.ndjson", [{"type": "view", "page": page}]), tmp_path / "notes"
    itself = plaudit("import", tenant, str(file), "--rejects", str(file), data_dir=tmp_path, env=env)
    assert itself.returncode == 1
    assert file.read_text()
    assert plaudit("import", tenant, str(file), data_dir=tmp_path, env=env).returncode == 0
    assert not file.with_name("events.ndjson.rejects.ndjson").exists(), "nothing was refused"
    notes.write_text("precious\n")
    again = plaudit("import", tenant, str(file), "--rejects", str(notes), data_dir=tmp_path, env=env)
    assert "nothing was added" in again.stdout
    assert notes.read_text() == "precious\n"
