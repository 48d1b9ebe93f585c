"""What tenant apps and browsers authenticate with: OAuth clients with secrets, publishable keys with origins.

A client's id is `<tenant>.<random>` and a key `pk_<tenant>_<random>-<mac>`, so each is looked up inside its own tenant.
Keys of earlier releases have no MAC (`tenants.unproven`). A secret is random and long, shown once, and stored as a
hash. After a rotation the old secret is valid for a day.
"""

import hmac
import re
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from sqlalchemy import select, text, update
from sqlalchemy.dialects.postgresql import ARRAY, TEXT, insert
from sqlalchemy.orm import Mapped, mapped_column

from tenants import liveness, registry, unproven
from tenants import settings as tenant_settings
from tenants.db import Base, DeletedWithTenant, Tx, tenant_tx
from tenants.errors import Invalid, NotFound
from tenants.opaque_tokens import hash_token, is_ours, signed
from tenants.settings import is_origin
from tenants.signing import Signer

CLIENT_TOKEN_TTL_S = 3600
OLD_SECRET_TTL = timedelta(days=1)
CLIENT_ID = re.compile(r"[a-z][a-z0-9-]{1,62}\.[0-9a-f]{16}")
KEY_ID = re.compile(r"pk_([a-z][a-z0-9-]{1,62})_[A-Za-z0-9-]{8,64}")
MAX_NAME_CHARS = 100
MAX_ORIGINS = 50


class Scope(StrEnum):
    PAGES_WRITE = "pages:write"
    EVENTS_WRITE = "events:write"
    EVENTS_BACKFILL = "events:backfill"
    STATS_READ = "stats:read"
    USERS_WRITE = "users:write"
    ACTIONS_WRITE = "actions:write"
    QUESTS_WRITE = "quests:write"
    ADMIN = "admin"


class Client(DeletedWithTenant, Base):
    __tablename__ = "oauth_clients"

    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str]
    scopes: Mapped[list[str]] = mapped_column(ARRAY(TEXT))
    secret_hash: Mapped[str]
    old_secret_hash: Mapped[str | None]
    old_secret_expires_at: Mapped[datetime | None]
    created_at: Mapped[datetime]
    last_used_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]

    def accepts(self, secret: str, *, now: datetime) -> bool:
        """Whether this is the client's secret, or its previous one while that is still valid."""
        given = hash_token(secret)
        if hmac.compare_digest(given, self.secret_hash):
            return True
        old_is_valid = self.old_secret_expires_at is not None and self.old_secret_expires_at > now
        return old_is_valid and hmac.compare_digest(given, self.old_secret_hash or "")


class PublishableKey(DeletedWithTenant, Base):
    __tablename__ = "publishable_keys"

    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str]
    origins: Mapped[list[str]] = mapped_column(ARRAY(TEXT))
    # From which the secret that signs for readers is derived (`tenants.reader_signatures`).
    reader_salt: Mapped[str] = mapped_column(server_default="")
    # Whether the first view of an unknown address makes its page.
    auto_pages: Mapped[bool] = mapped_column(server_default=text("false"))
    created_at: Mapped[datetime]
    revoked_at: Mapped[datetime | None]


class RevokedToken(DeletedWithTenant, Base):
    """A client's access token that was revoked before it expired."""

    __tablename__ = "revoked_tokens"

    jti: Mapped[str] = mapped_column(primary_key=True)
    expires_at: Mapped[datetime]


@dataclass(frozen=True)
class NewSecret:
    client: Client
    secret: str


def create_client(tx: Tx, *, name: str, scopes: Iterable[str], now: datetime) -> NewSecret:
    """Create a client. Its secret cannot be shown again."""
    check_name(name)
    wanted = check_scopes(scopes)
    secret = _new_secret()
    client = Client(
        tenant_id=tx.tenant,
        id=f"{tx.tenant}.{secrets.token_hex(8)}",
        name=name,
        scopes=wanted,
        secret_hash=hash_token(secret),
        created_at=now,
    )
    tx.add(client)
    tx.flush()
    return NewSecret(client, secret)


def list_clients(tx: Tx, *, after: str | None = None, limit: int = 1000) -> list[Client]:
    """Clients that are not revoked, by id."""
    wanted = select(Client).where(Client.revoked_at.is_(None), Client.id > (after or ""))
    return list(tx.scalars(wanted.order_by(Client.id).limit(limit)))


def rotate_client(tx: Tx, client_id: str, *, now: datetime) -> NewSecret:
    """Create a new secret. The old one stays valid for a day, so that the tenant's app needs no downtime."""
    client = tx.scalar(select(Client).where(Client.id == client_id, Client.revoked_at.is_(None)).with_for_update())
    if client is None:
        raise NotFound
    secret = _new_secret()
    client.old_secret_hash = client.secret_hash
    client.old_secret_expires_at = now + OLD_SECRET_TTL
    client.secret_hash = hash_token(secret)
    tx.flush()
    return NewSecret(client, secret)


def revoke_client(tx: Tx, client_id: str, *, now: datetime) -> None:
    """From the commit on its secrets and tokens are not valid."""
    _revoke(tx, Client, client_id, now)
    liveness.record(tx, [f"client:{client_id}"])


def find_client(client_id: str, *, network: str) -> Client | None:
    """The client with this id, if it is not revoked. The caller limits attempts, and checks the secret."""
    if CLIENT_ID.fullmatch(client_id) is None:
        return None
    tenant_id, name = client_id.split(".", 1)[0], f"client:{client_id}"
    values = (tenant_id, client_id)
    if not unproven.exists(tenant_id, name, _LIVE_CLIENT, values, network=network, is_limited=False):
        return None
    with tenant_tx(tenant_id) as tx:
        return tx.scalar(
            select(Client)
            .join(registry.Tenant, registry.Tenant.id == Client.tenant_id)
            .where(Client.id == client_id, Client.revoked_at.is_(None), registry.Tenant.deleted_at.is_(None))
        )


def record_use(client: Client, *, now: datetime) -> None:
    """Record that the client has authenticated."""
    with tenant_tx(client.tenant_id) as tx:
        tx.execute(update(Client).where(Client.id == client.id).values(last_used_at=now))


def client_token(client: Client, scopes: str, *, signer: Signer, now: datetime) -> str:
    claims = {"sub": client.id, "tenant": client.tenant_id, "scope": scopes, "client_id": client.id, "kind": "client"}
    return signer.sign(claims, ttl_s=CLIENT_TOKEN_TTL_S, now=now)


@dataclass(frozen=True, slots=True)
class ClientToken:
    """What identifies a client's access token for revocation."""

    client_id: str
    jti: str


def token_is_valid(tx: Tx, token: ClientToken) -> bool:
    """Whether neither the client nor this token is revoked, as the transaction sees it."""
    revoked = select(RevokedToken.jti).where(RevokedToken.tenant_id == tx.tenant, RevokedToken.jti == token.jti)
    valid_id = tx.scalar(
        select(Client.id)
        .join(registry.Tenant, registry.Tenant.id == Client.tenant_id)
        .where(
            Client.id == token.client_id,
            Client.revoked_at.is_(None),
            registry.Tenant.deleted_at.is_(None),
            ~revoked.exists(),
        )
    )
    return valid_id is not None


def token_names(client_id: str, jti: str) -> tuple[str, str]:
    """The names under which changes of a client's token are recorded."""
    return f"client:{client_id}", f"token:{jti}"


def client_token_is_valid(tenant_id: str, client_id: str, jti: str) -> bool:
    """The same, from memory if the answer is known there."""
    names = token_names(client_id, jti)

    def read() -> tuple[bool, Sequence[str]]:
        with tenant_tx(tenant_id) as tx:
            return token_is_valid(tx, ClientToken(client_id, jti)), names

    return liveness.look_up(tenant_id, " ".join(names), read)


def revoke_token(tenant_id: str, jti: str, *, expires_at: datetime) -> None:
    """Revoke one access token of a client, at once."""
    with tenant_tx(tenant_id) as tx:
        revoked = insert(RevokedToken).values(tenant_id=tenant_id, jti=jti, expires_at=expires_at)
        if tx.scalar(revoked.on_conflict_do_nothing().returning(RevokedToken.jti)) is not None:
            liveness.record(tx, [f"token:{jti}"])


def create_key(
    tx: Tx, *, signer: Signer, name: str, origins: Iterable[str], auto_pages: bool = False, now: datetime
) -> PublishableKey:
    """Create a key that browsers may send from these origins."""
    check_name(name)
    row = PublishableKey(
        tenant_id=tx.tenant,
        id=signed(signer, "pk", tx.tenant, random_bytes=12, separator="-"),
        name=name,
        origins=check_origins(origins),
        reader_salt=secrets.token_hex(16),
        auto_pages=auto_pages,
        created_at=now,
    )
    tx.add(row)
    tx.flush()
    return row


def list_keys(tx: Tx, *, after: str | None = None, limit: int = 1000) -> list[PublishableKey]:
    """Keys that are not revoked, by id."""
    wanted = select(PublishableKey).where(PublishableKey.revoked_at.is_(None), PublishableKey.id > (after or ""))
    return list(tx.scalars(wanted.order_by(PublishableKey.id).limit(limit)))


def change_reader_salt(tx: Tx, key_id: str) -> PublishableKey:
    """Have the key's readers signed for with another secret; from the commit on the old one is not valid."""
    changed: PublishableKey | None = tx.scalar(
        update(PublishableKey)
        .where(PublishableKey.id == key_id, PublishableKey.revoked_at.is_(None))
        .values(reader_salt=secrets.token_hex(16))
        .returning(PublishableKey)
    )
    if changed is None:
        raise NotFound
    liveness.record(tx, [f"key:{key_id}"])
    return changed


def revoke_key(tx: Tx, key_id: str, *, now: datetime) -> None:
    """From the commit on it is not valid."""
    _revoke(tx, PublishableKey, key_id, now)
    liveness.record(tx, [f"key:{key_id}"])


@dataclass(frozen=True)
class ValidKey:
    tenant_id: str
    key_id: str
    origins: frozenset[str]
    reader_salt: str = ""
    # Whether the key or its tenant lets pages make themselves.
    auto_pages: bool = False


def find_sent_key(key_id: str, *, signer: Signer, network: str) -> ValidKey | None:
    """The publishable key that a caller sends, if it is valid. Anybody can make one up: see `tenants.unproven`."""
    match = KEY_ID.fullmatch(key_id)
    if match is None:
        return None
    if not is_ours(key_id, signer, separator="-"):
        tenant_id = match[1]
        if not unproven.exists(tenant_id, f"key:{key_id}", _LIVE_KEY, (tenant_id, key_id), network=network):
            return None
    return find_key(key_id)


def find_key(key_id: str) -> ValidKey | None:
    """The publishable key, if it is valid; for a key that we know we issued."""
    match = KEY_ID.fullmatch(key_id)
    if match is None:
        return None
    tenant_id, name = match[1], f"key:{key_id}"

    def read() -> tuple[ValidKey | None, Sequence[str]]:
        with tenant_tx(tenant_id) as tx:
            found = tx.execute(
                select(PublishableKey.origins, PublishableKey.reader_salt, PublishableKey.auto_pages)
                .join(registry.Tenant, registry.Tenant.id == PublishableKey.tenant_id)
                .where(
                    PublishableKey.id == key_id,
                    PublishableKey.revoked_at.is_(None),
                    registry.Tenant.deleted_at.is_(None),
                )
            ).one_or_none()
            if found is None:
                return None, [name]
            settings, _ = tenant_settings.read(tx)
            every_origin = frozenset([*found.origins, *settings.allowed_origins])
            auto_pages = found.auto_pages or settings.auto_pages
            key = ValidKey(tenant_id, key_id, every_origin, found.reader_salt, auto_pages)
            return key, [name, liveness.SETTINGS]

    return liveness.look_up(tenant_id, name, read)


_LIVE_KEY = """
    SELECT k.id FROM publishable_keys k JOIN tenants t ON t.id = k.tenant_id
    WHERE k.tenant_id = %s AND k.id = %s AND k.revoked_at IS NULL AND t.deleted_at IS NULL
"""
_LIVE_CLIENT = """
    SELECT c.id FROM oauth_clients c JOIN tenants t ON t.id = c.tenant_id
    WHERE c.tenant_id = %s AND c.id = %s AND c.revoked_at IS NULL AND t.deleted_at IS NULL
"""


def check_origins(origins: Iterable[str]) -> list[str]:
    """Origins as browsers send them: scheme, host and an optional port, in lower case."""
    given = list(dict.fromkeys(origins))
    wrong = [origin for origin in given if not is_origin(origin)]
    if wrong or not 0 < len(given) <= MAX_ORIGINS:
        message = f"1 to {MAX_ORIGINS} origins such as https://wiki.example (no path)"
        if wrong:
            message += f"; not {wrong[0][:80]!r}"
        raise Invalid.field("origins", message)
    return given


def _revoke(tx: Tx, table: type[Client] | type[PublishableKey], row_id: str, now: datetime) -> None:
    revoked = tx.scalar(
        update(table).where(table.id == row_id, table.revoked_at.is_(None)).values(revoked_at=now).returning(table.id)
    )
    if revoked is None:
        raise NotFound


def check_name(name: str) -> None:
    """The name of a credential, for those who manage it."""
    if not name.strip() or len(name) > MAX_NAME_CHARS or not name.isprintable():
        raise Invalid.field("name", f"1 to {MAX_NAME_CHARS} printable characters")


def check_scopes(scopes: Iterable[str]) -> list[str]:
    """These scopes, each once, in the order of `Scope`."""
    given = list(dict.fromkeys(scopes))
    known = [scope.value for scope in Scope]
    unknown = [scope for scope in given if scope not in known]
    if unknown or not given:
        message = f"one or more of {', '.join(known)}" + (f"; not {unknown[0][:80]!r}" if unknown else "")
        raise Invalid.field("scopes", message)
    return sorted(given, key=known.index)


def _new_secret() -> str:
    return f"sk_{secrets.token_urlsafe(32)}"
