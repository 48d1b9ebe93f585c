"""The demo tenant that `plaudit up --demo` creates: a client, an admin who can log in, and open sign-up.

Their secrets are saved in the data folder (`demo.json`, readable by its owner only), so that the next start shows the
same. If the file is lost, or belongs to another database, new ones are created.
"""

import json
import secrets
from datetime import datetime
from pathlib import Path

from app.run.data_folder import write_private
from tenants import credentials, passwords, purging, registry, users
from tenants import settings as tenant_settings
from tenants.credentials import Scope
from tenants.db import Tx, owner_tx, tenant_tx, utcnow
from tenants.users import Role

DEMO_TENANT = "demo"
ADMIN = "admin"


def ensure(data_dir: Path) -> dict[str, str]:
    """Create the tenant and its credentials where they are missing; returns what the ready line shows of them."""
    now = utcnow()
    purging.purge(DEMO_TENANT)  # if it was deleted, and rows are left
    with owner_tx() as tx:
        registry.ensure(tx, DEMO_TENANT, name="Demo wiki", now=now)
    file = data_dir / "demo.json"
    try:
        saved: dict[str, str] = json.loads(file.read_text())
    except (FileNotFoundError, ValueError):
        saved = {}
    with tenant_tx(DEMO_TENANT) as tx:
        shown = {"tenant": DEMO_TENANT, **_client(tx, saved, now), **_admin(tx, saved, now)}
        if tenant_settings.read(tx)[1] == 0:  # never changed: an admin's choice stays
            tenant_settings.change(tx, {"signup_open": True}, now=now)
    write_private(file, json.dumps(shown))
    return shown


def _client(tx: Tx, saved: dict[str, str], now: datetime) -> dict[str, str]:
    known = {client.id: client for client in credentials.list_clients(tx)}
    client = known.get(saved.get("client_id", ""))
    if client is not None and client.accepts(saved.get("client_secret", ""), now=now):
        return {"client_id": client.id, "client_secret": saved["client_secret"]}
    created = credentials.create_client(tx, name="Demo app", scopes=[scope.value for scope in Scope], now=now)
    return {"client_id": created.client.id, "client_secret": created.secret}


def _admin(tx: Tx, saved: dict[str, str], now: datetime) -> dict[str, str]:
    admin = users.by_username(tx, ADMIN)
    password = saved.get("admin_password", "")
    if admin is not None and passwords.verify_password(admin.password_hash, password):
        return {"admin_username": ADMIN, "admin_password": password}
    password = secrets.token_urlsafe(12)
    hashed = passwords.hash_password(password)
    if admin is None:
        users.register(tx, username=ADMIN, email=None, password_hash=hashed, role=Role.ADMIN, now=now)
    else:
        users.set_password(tx, admin.id, hashed, now=now)
    return {"admin_username": ADMIN, "admin_password": password}
