"""The demo tenant that `plaudit up --demo` makes: a client, an admin who can log in, and sign-up open to anybody.

Their secrets are kept in the data folder (`demo.json`, readable by its owner only), so that the next start shows the
same. Where the file is lost, or the database another one, new ones are made.
"""

import json
import secrets
from datetime import datetime
from pathlib import Path

from app.run.data_folder import write_private
from tenants import credentials, passwords, registry, users
from tenants import settings as tenant_settings
from tenants.credentials import Scope
from tenants.db import Tx, owner_tx, tenant_tx, utcnow
from tenants.users import Role

DEMO_TENANT = "demo"
ADMIN = "admin"


def ensure(data_dir: Path) -> dict[str, str]:
    """The tenant with its credentials, made if need be: what the ready line says of it."""
    now = utcnow()
    with owner_tx() as tx:
        if DEMO_TENANT in registry.deleted(tx):  # and not purged yet
            registry.purge(tx, DEMO_TENANT)
        registry.ensure(tx, DEMO_TENANT, name="Demo wiki", now=now)
    file = data_dir / "demo.json"
    try:
        kept: dict[str, str] = json.loads(file.read_text())
    except (FileNotFoundError, ValueError):
        kept = {}
    with tenant_tx(DEMO_TENANT) as tx:
        told = {"tenant": DEMO_TENANT, **_client(tx, kept, now), **_admin(tx, kept, now)}
        if tenant_settings.read(tx)[1] == 0:  # nobody has decided anything yet
            tenant_settings.change(tx, {"signup_open": True}, now=now)
    write_private(file, json.dumps(told))
    return told


def _client(tx: Tx, kept: dict[str, str], now: datetime) -> dict[str, str]:
    known = {client.id: client for client in credentials.list_clients(tx)}
    client = known.get(kept.get("client_id", ""))
    if client is not None and client.accepts(kept.get("client_secret", ""), now=now):
        return {"client_id": client.id, "client_secret": kept["client_secret"]}
    made = credentials.create_client(tx, name="Demo app", scopes=[scope.value for scope in Scope], now=now)
    return {"client_id": made.client.id, "client_secret": made.secret}


def _admin(tx: Tx, kept: dict[str, str], now: datetime) -> dict[str, str]:
    admin = users.by_username(tx, ADMIN)
    password = kept.get("admin_password", "")
    if admin is not None and passwords.verify_password(admin.password_hash, password):
        return {"admin_username": ADMIN, "admin_password": password}
    password = secrets.token_urlsafe(12)
    hashed = passwords.hash_password(password)
    if admin is None:
        users.register(tx, username=ADMIN, email=None, password_hash=hashed, role=Role.ADMIN, now=now)
    else:
        users.set_password(tx, admin.id, hashed, now=now)
    return {"admin_username": ADMIN, "admin_password": password}
