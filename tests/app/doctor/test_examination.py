"""The whole examination: what cannot be examined is said, and the rest still is."""

from dataclasses import replace

import pytest

from app.doctor import boards, examination
from app.doctor import installation as installations
from app.doctor.examination import examine
from app.doctor.findings import Finding, Level
from app.doctor.installation import Installation
from tenants import db
from tests.app.doctor.conftest import execute


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boards, "MOVES_WITHIN_S", 0.2)


def subjects(findings: list[Finding]) -> set[str]:
    return {finding.about for finding in findings}


def test_every_subject_is_examined_and_nothing_fails(scratch: Installation) -> None:
    report = examine(scratch)
    assert subjects(report.findings) >= {
        "This machine",
        "PostgreSQL",
        "Tables",
        "Schema",
        "Redis",
        "Processes",
        "Boards",
    }
    assert [finding.what for finding in report.findings if finding.what.startswith("Not examined")] == []
    assert report.versions.keys() >= {"plaudit", "python", "postgresql"}
    assert {"redis", "valkey"} & report.versions.keys()


def test_without_a_database_redis_is_examined(scratch: Installation) -> None:
    db.configure(service_url=None, owner_url="postgresql://plaudit@127.0.0.1:1/plaudit")
    report = examine(scratch)
    assert not report.is_ok
    assert "Redis" in subjects(report.findings)
    assert not {"Tables", "Schema", "Boards"} & subjects(report.findings)


def test_without_redis_the_database_is_examined(scratch: Installation) -> None:
    away = replace(scratch.settings, redis_url="redis://127.0.0.1:1/0", queue_redis_url=None)
    report = examine(installations.of(away, scratch.data_dir, is_local=False, now=scratch.now))
    assert not report.is_ok
    assert {"Tables", "Schema", "Boards"} <= subjects(report.findings)
    of_processes = [finding.what for finding in report.findings if finding.about == "Processes"]
    assert len(of_processes) == 1, "what the database has of them"


def test_while_the_boards_are_away_the_queue_on_another_server_is_examined(scratch: Installation) -> None:
    away = replace(scratch.settings, redis_url="redis://127.0.0.1:1/0")
    report = examine(installations.of(away, scratch.data_dir, is_local=False, now=scratch.now))
    (of_boards,) = [
        finding for finding in report.findings if finding.level is Level.PROBLEM and finding.about == "Redis"
    ]
    assert "queue" not in of_boards.what + of_boards.why + of_boards.advice
    of_processes = [finding.what for finding in report.findings if finding.about == "Processes"]
    assert len(of_processes) == 5, "workers, cron, jobs that wait, jobs that failed; and what the database has of them"
    assert {"redis", "valkey"} & report.versions.keys()
    assert [finding.what for finding in report.findings if finding.what.startswith("Not examined")] == []


def test_without_our_schema_its_rows_are_not_looked_for(scratch: Installation) -> None:
    execute("""
        DO $$ BEGIN EXECUTE (SELECT 'DROP TABLE ' || string_agg(oid::regclass::text, ', ') || ' CASCADE' FROM pg_class
        WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p') AND NOT relispartition); END $$
    """)
    report = examine(scratch)
    (behind,) = [finding for finding in report.findings if finding.about == "Schema"]
    assert behind.level is Level.PROBLEM
    assert "Boards" not in subjects(report.findings)


def test_what_this_login_may_not_read_is_said_and_the_rest_examined(scratch: Installation) -> None:
    if not scratch.settings.service_database_url:
        pytest.skip("there is one login only")
    db.configure(service_url=None, owner_url=scratch.settings.service_database_url)
    report = examine(scratch)
    refused = [finding for finding in report.findings if finding.what.startswith("Not examined")]
    assert any("permission denied" in finding.what for finding in refused)
    assert {finding.level for finding in refused} == {Level.WARN}
    assert "PostgreSQL" in subjects(report.findings)


def test_while_plaudit_does_not_run_its_processes_are_not_missed(scratch: Installation) -> None:
    report = examine(replace(scratch, is_running=False))
    assert examination.NOT_RUNNING in report.findings
    assert "Boards" not in subjects(report.findings)
