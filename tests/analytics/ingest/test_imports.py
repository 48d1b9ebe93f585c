"""`plaudit import`: streams, continues after an interruption, and counts no line twice."""

import json
import signal
import subprocess
import time
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import text

from analytics.boards import projection
from analytics.ingest import imports
from analytics.ingest.events import Ages
from app.settings import Settings
from tenants.db import tenant_tx, utcnow
from tests.analytics.conftest import make_page, views_of
from tests.people import Caller
from tests.service import PLAUDIT, ROOT, own_servers_env, plaudit


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
    report = json.loads(done.stdout)
    assert (report["accepted"], report["rejected"], report["lines"]) == (2497, 2, 2500)
    rejects = [json.loads(line) for line in Path(report["rejects"]).read_text().splitlines()]
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

    early = retry(report["rejects"])
    assert (early["accepted"], early["rejected"]) == (0, 2)
    make_page(sender, "nowhere")
    second = retry(report["rejects"])
    assert (second["accepted"], second["rejected"]) == (1, 1), "what counted nothing can be tried again"
    assert views_of(tenant, "nowhere") == 1
    (left,) = Path(str(second["rejects"])).read_text().splitlines()
    assert json.loads(left)["event"] == "this is not JSON", "never wrapped twice"


def test_an_interrupted_import_goes_on_where_it_stopped(
    sender: Caller, tenant: str, page: str, tmp_path: Path, env: dict[str, str]
) -> None:
    total = 10_000
    file = write(tmp_path / "big.ndjson", [{"type": "view", "page": page}] * (total - 1) + ["bad"])
    command = [*PLAUDIT, "--data-dir", str(tmp_path), "import", tenant, str(file)]
    interrupted = 0
    for _ in range(3):
        before = views_of(tenant)
        process = subprocess.Popen(command, cwd=ROOT, env=own_servers_env() | env, stderr=subprocess.DEVNULL)
        while process.poll() is None and views_of(tenant) < before + 1000:
            time.sleep(0.005)
        interrupted += process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert interrupted >= 2
    done = plaudit("import", tenant, str(file), "--json", data_dir=tmp_path, env=env)
    report = json.loads(done.stdout)
    assert (report["accepted"], report["rejected"]) == (total - 1, 1)
    assert views_of(tenant) == total - 1
    assert len(Path(report["rejects"]).read_text().splitlines()) == 1


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


def test_an_import_waits_while_boards_are_over_a_minute_behind(tenant: str, page: str) -> None:
    assert list(imports.hold_back(tenant, now=utcnow)) == [pytest.approx(0, abs=60)], "no wait"
    projection.project_all(tenant, now=utcnow)
    with tenant_tx(tenant) as tx:
        two_minutes_ago = text("""
            INSERT INTO outbox (tenant_id, kind, member, marked_at)
            SELECT :t, 'page', number::text, now() - interval '2 minutes' FROM generate_series(1, 12000) number
        """)
        tx.execute(two_minutes_ago, {"t": tenant})
    lags = list(imports.hold_back(tenant, now=utcnow))
    assert len(lags) >= 2
    assert min(lags[:-1]) > imports.MAX_LAG_S >= lags[-1], "it waits until the projection has caught up"
