"""The tenants themselves, created and deleted by operators.

Deleting is two steps. `mark_deleted` ends the tenant's access at once; `tenants.purging` then deletes its rows, and can
be run any number of times.
"""

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import CheckConstraint, func, select, text, update
from sqlalchemy.dialects.postgresql import JSONB, insert
from sqlalchemy.orm import Mapped, mapped_column

from tenants import liveness
from tenants.db import TENANT_ID, Base, Query, Tx
from tenants.errors import Conflict, Invalid, NotFound

MAX_NAME_CHARS = 200
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")


class Tenant(Base):
    __tablename__ = "tenants"
    __table_args__ = (CheckConstraint("id ~ '^[a-z][a-z0-9-]{1,62}$'", name="slug"),)

    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    deleted_at: Mapped[datetime | None]
    # The ceilings that an operator has set (`tenants.ceilings`); the others have their defaults.
    ceilings: Mapped[dict[str, Any]] = mapped_column(JSONB, server_default=text("'{}'::jsonb"))


class TenantExists(Conflict):
    code = "tenant_exists"
    title = "A tenant with this id already exists"


class TenantNotFound(NotFound):
    code = "tenant_not_found"
    title = "There is no such tenant"


@dataclass(frozen=True)
class Created:
    tenant: Tenant
    is_new: bool


def create(tx: Tx, tenant_id: str, *, name: str, now: datetime) -> Tenant:
    """Create a tenant, as the owner."""
    created = ensure(tx, tenant_id, name=name, now=now)
    if not created.is_new:
        pending = " and is being deleted" if created.tenant.deleted_at else ""
        raise TenantExists(f"A tenant {tenant_id!r} already exists{pending}")
    return created.tenant


def ensure(tx: Tx, tenant_id: str, *, name: str, now: datetime) -> Created:
    """The tenant with this id, created if it does not exist."""
    _check(tenant_id, name)
    row = tx.scalar(
        insert(Tenant).values(id=tenant_id, name=name, created_at=now).on_conflict_do_nothing().returning(Tenant)
    )
    if row is not None:
        liveness.record(tx, [liveness.TENANT], tenant_id=tenant_id)  # an earlier tenant may have had this id
        return Created(row, is_new=True)
    return Created(tx.scalars(select(Tenant).where(Tenant.id == tenant_id)).one(), is_new=False)


def live(tx: Tx) -> list[Tenant]:
    """Every tenant that is not deleted, by id. For `owner_tx` and `platform_tx`."""
    return list(tx.scalars(select(Tenant).where(Tenant.deleted_at.is_(None)).order_by(Tenant.id)))


def get(tx: Tx, tenant_id: str) -> Tenant:
    tenant = tx.scalar(select(Tenant).where(Tenant.id == tenant_id, Tenant.deleted_at.is_(None)))
    if tenant is None:
        raise TenantNotFound(f"There is no tenant {tenant_id!r}")
    return tenant


def get_even_deleted(tx: Tx, tenant_id: str) -> Tenant:
    """A tenant, also one that is deleted and has rows left."""
    tenant = tx.scalar(select(Tenant).where(Tenant.id == tenant_id))
    if tenant is None:
        raise TenantNotFound(f"There is no tenant {tenant_id!r}")
    return tenant


def is_live(tx: Tx, tenant_id: str) -> bool:
    """Whether the tenant exists and is not deleted."""
    return tx.run(*finding_live(tenant_id)) != []


def finding_live(tenant_id: str) -> Query:
    """The query that finds a row if the tenant exists and is not deleted."""
    return _IS_LIVE, {"tenant": tenant_id}


def mark_deleted(tx: Tx, tenant_id: str, *, now: datetime) -> None:
    """End the tenant's access. Its rows are deleted later."""
    marked = tx.scalar(
        update(Tenant)
        .where(Tenant.id == tenant_id, Tenant.deleted_at.is_(None))
        .values(deleted_at=now)
        .returning(Tenant.id)
    )
    if marked is None:
        raise TenantNotFound(f"There is no tenant {tenant_id!r}")
    liveness.record(tx, [liveness.TENANT], tenant_id=tenant_id)


def deleted(tx: Tx) -> list[str]:
    """The tenants that are marked as deleted and not purged yet."""
    return list(tx.scalars(select(Tenant.id).where(Tenant.deleted_at.is_not(None)).order_by(Tenant.id)))


def _check(tenant_id: str, name: str) -> None:
    errors: dict[str, str] = {}
    if TENANT_ID.fullmatch(tenant_id) is None:
        errors["id"] = "2 to 63 of a-z, 0-9 and -, starting with a letter"
    if not name.strip() or len(name) > MAX_NAME_CHARS or _UNPRINTABLE.search(name):
        errors["name"] = f"1 to {MAX_NAME_CHARS} printable characters"
    if errors:
        raise Invalid.fields(errors)


_IS_LIVE = text("SELECT id FROM tenants WHERE id = :tenant AND deleted_at IS NULL")
