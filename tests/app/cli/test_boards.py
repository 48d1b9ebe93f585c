"""`plaudit check` and `plaudit rebuild`: what they say. (What they find: tests/analytics/boards/test_checking.py.)"""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import text

from analytics import checks
from analytics.boards import projection
from app.cli import boards
from app.cli.boards import CHECKS
from app.run.data_folder import Addresses
from app.run.ports import reserve_port
from tenants import redis as tenants_redis
from tenants.db import owner_tx, tenant_tx, utcnow
from tests.app.cli.conftest import Run, commands_on
from tests.people import Caller


def test_check_lists_the_differences_and_rebuild_removes_them(
    tenant: str, sender: Caller, page: str, on_ours: Run
) -> None:
    assert sender("POST", f"/api/v1/pages/{page}/views").status_code == 202
    due = on_ours("check", tenant)
    assert (due.returncode, due.stdout) == (0, "1 tenant, 0 pages, 0 boards: no differences, 1 still due.\n")
    projection.project_all(tenant, now=utcnow)
    right = json.loads(on_ours("check", tenant, "--json").stdout)
    assert (right["ok"], right["pages"], right["due"], right["differences"]) == (True, 1, 0, [])

    key = f"lb:{tenant}:tenant:7d:views"
    with tenants_redis.boards().client() as redis:
        ((member, _),) = redis.zscan_iter(key)
        redis.zadd(key, {member: 5})
    wrong = on_ours("check", tenant)
    assert wrong.returncode == 1
    assert key in wrong.stdout
    *_, result, advice = wrong.stdout.splitlines()
    assert result.endswith(": 1 difference.")
    assert advice.startswith(f"plaudit rebuild {tenant} computes the numbers and fills the boards again.")
    found = json.loads(on_ours("check", tenant, "--json").stdout)
    assert found["differences"] == [
        {"tenant": tenant, "where": key, "member": f"page {page}", "found": 5, "expected": 1}
    ]
    assert not found["ok"]

    rebuilt = on_ours("rebuild", tenant)
    assert rebuilt.stdout.startswith("1 tenant: 1 page computed, ")
    assert "boards rebuilt" in rebuilt.stderr, "standard output is for the result"
    assert json.loads(on_ours("rebuild", tenant, "--json").stdout)["tenants"] == 1
    assert on_ours("check", tenant).returncode == 0


def test_check_compares_the_parts_that_are_named(tenant: str, on_ours: Run) -> None:
    assert (*checks.PARTS, checks.GLOBAL) == CHECKS, "the help names them all"
    shown = on_ours("check", "--help").stdout
    assert [name for name in CHECKS if name not in shown] == []
    assert on_ours("user", "create", tenant, "ada").returncode == 0
    with tenant_tx(tenant) as tx:
        tx.execute(text("UPDATE users SET quests_created = 3, current_score = 5"))

    def found(*parts: str) -> set[str]:
        options = [word for part in parts for word in ("--only", part)]
        report = json.loads(on_ours("check", tenant, "--json", *options).stdout)
        return {one["where"] for one in report["differences"]}

    assert found("visitors") == set()
    assert found("quests") == {"users.quests_created"}
    assert found("quests", "users") == found() == {"users.quests_created", "users.current_score"}
    refused = on_ours("check", tenant, "--only", "global")
    assert (refused.returncode, "is without TENANT" in refused.stderr) == (2, True)
    assert on_ours("check", "--only", "nothing").returncode == 2


def test_progress_is_told_with_names_and_counts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(boards, "SAY_EVERY_S", 0.0)
    known = "acme: pages, 5,000 of 300,000\n"
    for quiet, total, said in ((False, 300_000, known), (False, None, "acme: pages, 5,000\n"), (True, 300_000, "")):
        with boards._watching(quiet=quiet) as watching:
            watching("acme")("pages", 5_000, total)
        assert capsys.readouterr().err == said


def test_a_check_that_waits_too_long_does_not_blame_the_address(tenant: str, on_ours: Run) -> None:
    assert on_ours("user", "create", tenant, "ada").returncode == 0
    with owner_tx() as tx:
        tx.execute(text("LOCK TABLE attestations IN ACCESS EXCLUSIVE MODE"))
        stopped = on_ours("check", tenant, "--only", "quests")
    assert stopped.returncode == 1
    (line,) = stopped.stderr.splitlines()
    assert line.startswith("plaudit: PostgreSQL ended a statement at its limit of time (")
    assert "DATABASE_URL" not in stopped.stderr


@pytest.mark.parametrize("command", ["check", "rebuild"])
def test_without_redis_its_address_is_said_and_no_password(
    tenant: str, addresses: Addresses, tmp_path: Path, command: str
) -> None:
    without = replace(addresses, redis_url=f"redis://:sesame@127.0.0.1:{reserve_port()}/0")
    answer = commands_on(without, tmp_path)(command, tenant)
    assert answer.returncode == 1
    last = answer.stderr.splitlines()[-1]
    assert re.fullmatch(r"plaudit: The boards' Redis cannot be reached \(127\.0\.0\.1:\d+\): start it, or .*", last)
    assert "sesame" not in answer.stderr
