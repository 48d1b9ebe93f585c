"""`plaudit tenant …`"""

import json
import os
import re
import secrets
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from sqlalchemy import text

from analytics.boards import projection
from app.run.data_folder import Addresses
from app.run.ports import reserve_port
from tenants.db import owner_tx, tenant_tx, utcnow
from tests.app.cli.conftest import Run, commands_on, env_of
from tests.commands import ROOT
from tests.service import eventually


def test_tenants_are_made_listed_and_deleted(connected: None, on_ours: Run) -> None:
    tenant = f"acme-{secrets.token_hex(4)}"

    def listed() -> list[str]:
        return [row["id"] for row in json.loads(on_ours("tenant", "list", "--json").stdout)]

    made = on_ours("tenant", "create", tenant, "--name", "Acme <wiki>", "--json")
    assert json.loads(made.stdout)["id"] == tenant, made.stderr
    again = on_ours("tenant", "create", tenant, "--name", "Acme")
    assert again.returncode == 1
    assert again.stderr == f"plaudit: A tenant '{tenant}' already exists\n"
    bad = on_ours("tenant", "create", "A!", "--name", "x")
    assert bad.returncode == 1
    assert bad.stderr.startswith("plaudit: id: 2 to 63")
    assert "Acme <wiki>" in on_ours("tenant", "list").stdout
    assert tenant in listed()
    unsure = on_ours("tenant", "delete", tenant)
    assert (unsure.returncode, tenant in listed()) == (1, True), "it asks first"
    deleted = on_ours("tenant", "delete", tenant, "--yes")
    assert deleted.returncode == 0
    assert re.match(
        rf"Deleted tenant {tenant}: \d+ rows and 0 keys of Redis\. 0\.\d MB of rows, and .* free for", deleted.stdout
    )
    assert tenant not in listed()
    assert on_ours("tenant", "delete", tenant, "--yes").returncode == 1


def test_an_operator_sets_and_sees_how_much_a_tenant_may_have(tenant: str, on_ours: Run) -> None:
    on_ours("user", "create", tenant, "first")

    def limits(*options: str) -> dict[str, tuple[int, int | None]]:
        done = on_ours("tenant", "limit", tenant, *options, "--json")
        assert done.returncode == 0, done.stderr
        return {row["what"]: (row["limit"], row["used"]) for row in json.loads(done.stdout)}

    assert limits() == {
        "pages": (5_000_000, 0),
        "users": (5_000_000, 1),
        "spaces": (1_000, 0),
        "segments": (1_000, 0),
        "sockets": (2_000, None),
    }
    changed = limits("--users", "1", "--sockets", "10")
    assert (changed["users"], changed["sockets"], changed["pages"]) == ((1, 1), (10, None), (5_000_000, 0))
    assert "users" in on_ours("tenant", "limit", tenant).stdout
    second = on_ours("user", "create", tenant, "second")
    assert (second.returncode, "maximum of 1 users" in second.stderr) == (1, True)
    for wrong in (("nobody",), (tenant, "--pages", "-1")):
        assert on_ours("tenant", "limit", *wrong).returncode in {1, 2}


def filled(tenant: str) -> None:
    """Give the tenant 20,000 pages on the global boards."""
    with tenant_tx(tenant) as tx:
        tx.execute(
            text("""
                INSERT INTO pages (tenant_id, external_id, title, url, space_key, visibility, created_at, updated_at)
                SELECT :tenant, 'p' || n, 'x', 'https://e.example/' || n, 'eng', 'public', now(), now()
                FROM generate_series(1, 20000) n
            """),
            {"tenant": tenant},
        )
        tx.execute(
            text("""
                INSERT INTO page_views_hour (tenant_id, page_id, bucket_hour, views)
                SELECT :tenant, id, date_trunc('hour', now()), 1 FROM pages WHERE tenant_id = :tenant
            """),
            {"tenant": tenant},
        )


def rows_of(tenant: str, table: str) -> int:
    with owner_tx() as tx:
        return int(tx.scalar(text(f"SELECT count(*) FROM {table} WHERE tenant_id = :t"), {"t": tenant}) or 0)


def audited(stderr: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in stderr.splitlines() if line.startswith("{")]
    return [line for line in lines if line.get("action", "").startswith("audit.tenant.")]


def test_a_deletion_that_was_killed_is_continued_by_the_same_command(
    tenant: str, on_ours: Run, addresses: Addresses, tmp_path: Path
) -> None:
    filled(tenant)
    command = [sys.executable, "-m", "app.cli", "--data-dir", str(tmp_path), "tenant", "delete", tenant, "--yes"]
    with tenant_tx(tenant) as tx:
        tx.execute(text("SELECT id FROM pages WHERE tenant_id = :t LIMIT 1 FOR UPDATE"), {"t": tenant})
        process = subprocess.Popen(
            command, stderr=subprocess.PIPE, cwd=ROOT, env={**os.environ, **env_of(addresses)}, text=True
        )

        def has_begun() -> bool:
            with ThreadPoolExecutor(1) as other:
                return other.submit(rows_of, tenant, "page_views_hour").result() == 0

        eventually(has_begun)
        process.kill()
    _, stderr = process.communicate()
    assert [(line["action"], line["data"]) for line in audited(stderr)] == [
        ("audit.tenant.deleting", {"begun_before": False})
    ], "the intent, before anything was deleted"
    assert rows_of(tenant, "pages") > 0

    rest = on_ours("tenant", "delete", tenant, "--yes", "--json")
    assert rest.returncode == 0, rest.stderr
    said = json.loads(rest.stdout)
    assert said["purged"]
    assert said["rows"] >= 10_000
    assert said["bytes"] > 20 * said["rows"]
    began, ended = audited(rest.stderr)
    assert (began["action"], began["data"]) == ("audit.tenant.deleting", {"begun_before": True})
    assert (ended["action"], ended["data"]["rows"]) == ("audit.tenant.deleted", said["rows"])
    assert rows_of(tenant, "pages") == 0
    assert on_ours("tenant", "delete", tenant, "--yes").returncode == 1, "there is no such tenant any more"


def test_without_redis_access_ends_and_the_rows_stay_for_later(
    tenant: str, page: str, on_ours: Run, addresses: Addresses, tmp_path: Path
) -> None:
    projection.project_all(tenant, now=utcnow)
    without = replace(addresses, redis_url=f"redis://127.0.0.1:{reserve_port()}/0")
    begun = commands_on(without, tmp_path)("tenant", "delete", tenant, "--yes")
    assert begun.returncode == 0, begun.stderr
    assert begun.stdout.startswith(f"Access to {tenant} has ended.")
    assert rows_of(tenant, "pages") == 1
    assert on_ours("tenant", "delete", tenant, "--yes").stdout.startswith(f"Deleted tenant {tenant}: ")
    assert rows_of(tenant, "pages") == 0
