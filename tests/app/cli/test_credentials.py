"""`plaudit client …`, `plaudit key …`, `plaudit user …`, `plaudit signing-key …`"""

import json
import os
import subprocess
from datetime import timedelta
from pathlib import Path

from sqlalchemy import select

from app.run import data_folder
from app.run.data_folder import Addresses
from tenants import credentials, users
from tenants.db import tenant_tx, utcnow
from tenants.reader_signatures import ReaderSignatures
from tests.app.cli.conftest import Run, env_of
from tests.people import PASSWORD
from tests.service import PLAUDIT, ROOT


def test_clients_from_the_command_line(tenant: str, on_ours: Run) -> None:
    made = json.loads(on_ours("client", "create", tenant, "--scopes", "stats:read,events:write", "--json").stdout)
    assert made["client_secret"].startswith("sk_")
    listed = on_ours("client", "list", tenant, "--json").stdout
    assert made["client_id"] in listed
    assert made["client_secret"] not in listed
    rotated = json.loads(on_ours("client", "rotate", tenant, made["client_id"], "--json").stdout)
    assert rotated["client_secret"] != made["client_secret"]
    assert on_ours("client", "revoke", tenant, made["client_id"]).returncode == 0
    assert "no client yet" in on_ours("client", "list", tenant).stdout


def test_keys_from_the_command_line(tenant: str, on_ours: Run, tmp_path: Path) -> None:
    made = on_ours("key", "create", tenant, "--origin", "https://w.example", "--auto-pages", "--json")
    key = json.loads(made.stdout)
    assert key["key"].startswith(f"pk_{tenant}_")
    assert key["auto_pages"] is True
    changed = json.loads(on_ours("key", "signing-secret", tenant, key["key"], "--json").stdout)
    assert changed == key | {"signing_secret": changed["signing_secret"]}
    assert changed["signing_secret"] != key["signing_secret"]
    found = credentials.find_key(key["key"])
    assert found is not None
    secret_key = data_folder.read_secrets(tmp_path)["secret_key"]
    assert ReaderSignatures(secret_key).secret_of(found.key_id, found.reader_salt) == changed["signing_secret"]
    assert on_ours("key", "revoke", tenant, key["key"]).returncode == 0
    assert "Not found" in on_ours("key", "signing-secret", tenant, key["key"]).stderr


def test_users_from_the_command_line(tenant: str, on_ours: Run) -> None:
    admin = on_ours("user", "create", tenant, "boss", "--role", "admin")
    assert "Password: " in admin.stdout, admin.stderr
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


def test_the_signing_key_is_rotated_from_the_command_line(connected: None, on_ours: Run) -> None:
    assert "published" in on_ours("signing-key", "rotate").stdout
