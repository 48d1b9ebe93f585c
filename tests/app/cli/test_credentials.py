"""`plaudit client …`, `plaudit key …`, `plaudit signing-key …`"""

import json
from pathlib import Path

from app.run import data_folder
from tenants import credentials
from tenants.reader_signatures import ReaderSignatures
from tests.app.cli.conftest import Run


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


def test_the_signing_key_is_rotated_from_the_command_line(connected: None, on_ours: Run) -> None:
    assert "published" in on_ours("signing-key", "rotate").stdout
