"""`plaudit user …`"""

import json
import os
import subprocess
from datetime import timedelta
from pathlib import Path

from sqlalchemy import select

from app.run.data_folder import Addresses
from tenants import users
from tenants.db import tenant_tx, utcnow
from tests.app.cli.conftest import Run, env_of
from tests.people import PASSWORD
from tests.service import PLAUDIT, ROOT


def test_users_from_the_command_line(tenant: str, on_ours: Run) -> None:
    admin = on_ours("user", "create", tenant, "boss", "--role", "admin")
    assert "(must be changed at the first login)" in admin.stdout, admin.stderr
    assert "audit.user.created" in admin.stderr
    with tenant_tx(tenant) as tx:
        (boss,) = tx.scalars(select(users.User)).all()
    assert boss.sees_private, "who is made here sees private pages"
    assert boss.must_change_password, "others may have seen the password that was printed"
    assert "suspended" in on_ours("user", "suspend", tenant, "boss").stdout
    until = f"{utcnow() + timedelta(days=2):%Y-%m-%d}"
    assert f"suspended until {until}T00:00:00Z" in on_ours("user", "suspend", tenant, "boss", "--until", until).stdout
    assert json.loads(on_ours("user", "list", tenant, "--json").stdout)[0]["suspended_until"] == f"{until}T00:00:00Z"
    assert "admin" in on_ours("user", "suspend", tenant, "boss", "--lift").stdout
    assert "member" in on_ours("user", "role", tenant, "boss", "member").stdout
    assert json.loads(on_ours("user", "list", tenant, "--json").stdout)[0]["username"] == "boss"
    correction = ("user", "correct", tenant, "boss", "--account", "xp", "--reason", "by hand")
    corrected = on_ours(*correction, "--delta", "7", "--json")
    assert json.loads(corrected.stdout)["score"] == 7, corrected.stderr
    assert "audit.score.corrected" in corrected.stderr
    assert "by hand" not in corrected.stderr
    assert "below 0" in on_ours(*correction, "--delta", "-8").stderr


def test_a_chosen_password_must_be_strong_and_stays(tenant: str, addresses: Addresses, tmp_path: Path) -> None:
    def create(username: str, password: str) -> subprocess.CompletedProcess[str]:
        create = ("user", "create", tenant, username, "--password-stdin", "--email", "grace.hopper@example.org")
        command = [*PLAUDIT, "--data-dir", str(tmp_path), *create]
        env = os.environ | env_of(addresses)
        return subprocess.run(
            command, input=f"{password}\n", env=env, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120
        )

    refused = create("grace", "grace.hopper1")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "password: " in refused.stderr
    assert "grace.hopper1" not in refused.stderr
    created = create("grace", PASSWORD)
    assert created.returncode == 0, created.stderr
    assert PASSWORD not in created.stdout
    with tenant_tx(tenant) as tx:
        assert [user.must_change_password for user in tx.scalars(select(users.User))] == [False]
