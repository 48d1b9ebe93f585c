"""What each tenant has decided: one typed object with defaults, kept as what differs from them."""

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey, select, text
from sqlalchemy.dialects.postgresql import JSONB, insert
from sqlalchemy.orm import Mapped, mapped_column

from tenants.db import Base, TenantOwned, Tx, tenant_tx
from tenants.errors import Invalid, Stale


@dataclass(frozen=True)
class Limits:
    score_updates_per_minute: int = 10
    beacons_per_minute: int = 60


@dataclass(frozen=True)
class Retention:
    action_events_days: int = 90
    hourly_buckets_days: int = 400
    event_ids_days: int = 40
    snapshots_days: int = 400


@dataclass(frozen=True)
class TenantSettings:
    signup_open: bool = True
    share_public_pages: bool = False
    public_scoreboard: bool = False
    limits: Limits = field(default_factory=Limits)
    retention: Retention = field(default_factory=Retention)


# The least and most each number may be. An event's id must be remembered longer than an event's age is accepted.
RANGES: dict[str, tuple[int, int]] = {
    "limits.score_updates_per_minute": (1, 10_000),
    "limits.beacons_per_minute": (1, 10_000),
    "retention.action_events_days": (1, 3650),
    "retention.hourly_buckets_days": (31, 3650),
    "retention.event_ids_days": (8, 400),
    "retention.snapshots_days": (1, 3650),
}


RECENT_S = 3.0
MOST_RECENT = 10_000
_recent: dict[str, tuple[float, TenantSettings]] = {}


class TenantSettingsRow(TenantOwned, Base):
    __tablename__ = "tenant_settings"

    tenant_id: Mapped[str] = mapped_column(
        ForeignKey("tenants.id", ondelete="CASCADE"), primary_key=True, sort_order=-1
    )
    version: Mapped[int]
    overrides: Mapped[dict[str, Any]] = mapped_column(JSONB)
    updated_at: Mapped[datetime]


def read(tx: Tx) -> tuple[TenantSettings, int]:
    """The settings of the transaction's tenant, and their version (0: never changed)."""
    row = tx.scalar(select(TenantSettingsRow))
    if row is None:
        return TenantSettings(), 0
    return merge(TenantSettings(), row.overrides), row.version


def recent(tenant_id: str) -> TenantSettings:
    """The settings as of a few seconds ago at most: for busy routes that would only read them."""
    now = time.monotonic()
    known = _recent.get(tenant_id)
    if known is None or known[0] < now:
        with tenant_tx(tenant_id) as tx:
            known = (now + RECENT_S, read(tx)[0])
        if len(_recent) > MOST_RECENT:
            _recent.clear()
        _recent[tenant_id] = known
    return known[1]


def change(
    tx: Tx, changes: Mapping[str, Any], *, now: datetime, expected_version: int | None = None
) -> tuple[TenantSettings, int]:
    """Set some of them; the rest stays. With an expected version, only if nobody was quicker."""
    tx.execute(text("SELECT pg_advisory_xact_lock(hashtextextended('settings:' || :tenant, 0))"), {"tenant": tx.tenant})
    current, version = read(tx)
    if expected_version is not None and expected_version != version:
        raise Stale(f"The settings are at version {version} now")
    changed = merge(current, changes)
    values = {"version": version + 1, "overrides": asdict(changed), "updated_at": now}
    tx.execute(
        insert(TenantSettingsRow)
        .values(tenant_id=tx.tenant, **values)
        .on_conflict_do_update(index_elements=["tenant_id"], set_=values)
    )
    return changed, version + 1


def merge(current: TenantSettings, changes: Mapping[str, Any]) -> TenantSettings:
    """`current` with these changes, each checked by name, type and range."""
    errors: dict[str, list[str]] = {}
    merged = _merge(current, changes, "", errors)
    if errors:
        raise Invalid("; ".join(f"{name}: {said[0]}" for name, said in errors.items()), errors=errors)
    settings: TenantSettings = merged
    return settings


def _merge(current: Any, changes: Mapping[str, Any], prefix: str, errors: dict[str, list[str]]) -> Any:
    known = {entry.name for entry in fields(current)}
    values: dict[str, Any] = {}
    for name, value in changes.items():
        path = f"{prefix}{name}"
        if name not in known:
            errors[path] = [f"there is no such setting; there are {', '.join(sorted(known))}"]
            continue
        before = getattr(current, name)
        if isinstance(before, bool):
            if isinstance(value, bool):
                values[name] = value
            else:
                errors[path] = ["true or false"]
        elif isinstance(before, int):
            least, most = RANGES[path]
            if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most:
                values[name] = value
            else:
                errors[path] = [f"a whole number from {least} to {most}"]
        elif isinstance(value, Mapping):
            values[name] = _merge(before, value, f"{path}.", errors)
        else:
            errors[path] = ["an object"]
    return replace(current, **values)
