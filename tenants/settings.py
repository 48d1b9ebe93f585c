"""Each tenant's settings: one typed object with defaults. Only what the tenant has set is stored.

A value is stored even if it equals the default: a later release may have another default, and must not change it.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any
from urllib.parse import urlsplit

from sqlalchemy import select, text
from sqlalchemy.dialects.postgresql import JSONB, insert
from sqlalchemy.orm import Mapped, mapped_column

from tenants import liveness
from tenants.db import Base, DeletedWithTenant, Tx, tenant_tx
from tenants.errors import Invalid, Stale


@dataclass(frozen=True)
class Limits:
    # Of each user's own claims.
    score_updates_per_minute: int = 10
    # Of the tenant's apps together: actions in batches.
    app_actions_per_minute: int = 600_000
    # Accepted beacons of one address, and of one visitor. As many are refused before the address must wait.
    beacons_per_minute: int = 3_000
    visitor_beacons_per_minute: int = 120
    # Page loads of one visitor that are counted, and visitors of one address, for each page and day (UTC).
    visitor_views_per_day: int = 50
    visitors_per_address: int = 300
    # Above this a breaker stops score updates of the tenant, in each process.
    score_spike_per_minute: int = 1_000_000
    # Open sockets and streams of the tenant, in each live process.
    live_connections: int = 2_000
    # Pages that make themselves in a day (UTC).
    auto_pages_per_day: int = 1_000
    # Attempts at the passwords of all users together, from devices that they have not used before.
    logins_per_minute: int = 300


@dataclass(frozen=True)
class Integrity:
    # A user who gets more is flagged.
    points_per_hour: int = 10_000
    suspend_automatically: bool = False


@dataclass(frozen=True)
class Retention:
    action_events_days: int = 90
    hourly_buckets_days: int = 400
    event_ids_days: int = 40
    snapshots_days: int = 400


@dataclass(frozen=True)
class Quests:
    # Whether members may create quests, or admins only.
    members_create: bool = True
    # What one user may offer in a day (UTC), cancelled quests included.
    quests_per_day: int = 20
    xp_per_day: int = 20_000
    # What one user may have claimed and not submitted yet, and for how long.
    open_claims: int = 5
    claim_days: int = 14
    attestations_per_day: int = 50
    # The least that a quest may ask for: how many attestations, and of which average rating.
    attestations_required: int = 1
    min_rating: int = 3
    # Above this many XP one attester must be another than the creator.
    witness_above_xp: int = 500
    # Whether every step must say which version it is for.
    require_if_match: bool = False


class VisiblePages(StrEnum):
    """Which of a tenant's pages a user sees."""

    PUBLIC = "public"
    ALL = "all"


@dataclass(frozen=True)
class SpaceRule:
    """Pages that make themselves at addresses whose path begins with `prefix` get this space and visibility."""

    prefix: str
    space: str
    visibility: str = "private"


@dataclass(frozen=True)
class TenantSettings:
    # Whether anyone who knows the tenant's id may register as a member.
    signup_open: bool = False
    # What members see who registered themselves, until an admin sets their `sees_private`.
    signup_sees: VisiblePages = VisiblePages.PUBLIC
    # A session ends when it was not used that long.
    session_idle_days: int = 14
    admin_session_idle_days: int = 1
    share_public_pages: bool = False
    public_scoreboard: bool = False
    # Whether strangers see the names and pictures of users.
    public_names: bool = False
    # Origins from which every publishable key of the tenant is valid, besides the key's own.
    allowed_origins: tuple[str, ...] = ()
    # Where members may have their own pictures: readers' browsers load them from there. Admins and apps choose freely.
    picture_hosts: tuple[str, ...] = ()
    # Whether the first view of an unknown address makes its page, with any key; and the spaces of such pages. The first
    # rule that matches decides.
    auto_pages: bool = False
    space_rules: tuple[SpaceRule, ...] = ()
    limits: Limits = field(default_factory=Limits)
    integrity: Integrity = field(default_factory=Integrity)
    retention: Retention = field(default_factory=Retention)
    quests_enabled: bool = True
    quests: Quests = field(default_factory=Quests)


# Minimum and maximum of each number. An event's id must be kept for longer than the maximum age of an event.
RANGES: dict[str, tuple[int, int]] = {
    "limits.score_updates_per_minute": (1, 10_000),
    "limits.app_actions_per_minute": (1, 100_000_000),
    "limits.beacons_per_minute": (1, 100_000),
    "limits.visitor_beacons_per_minute": (1, 10_000),
    "limits.visitor_views_per_day": (1, 100_000),
    "limits.visitors_per_address": (1, 1_000_000),
    "limits.score_spike_per_minute": (1, 100_000_000),
    "limits.live_connections": (0, 100_000),
    "limits.auto_pages_per_day": (0, 100_000),
    "limits.logins_per_minute": (10, 10_000),
    "session_idle_days": (1, 30),
    "admin_session_idle_days": (1, 30),
    "integrity.points_per_hour": (1, 2**53 - 1),
    "retention.action_events_days": (1, 3650),
    "retention.hourly_buckets_days": (31, 3650),
    "retention.event_ids_days": (8, 400),
    "retention.snapshots_days": (1, 3650),
    "quests.quests_per_day": (0, 10_000),
    "quests.xp_per_day": (0, 100_000_000),
    "quests.open_claims": (1, 1_000),
    "quests.claim_days": (1, 365),
    "quests.attestations_per_day": (0, 10_000),
    "quests.attestations_required": (1, 10),
    "quests.min_rating": (1, 5),
    "quests.witness_above_xp": (0, 10_000),
}


MAX_ORIGINS = 50
MAX_PICTURE_HOSTS = 50
HOST = re.compile(r"(?=.{1,253}\Z)[a-z0-9-]{1,63}(?:\.[a-z0-9-]{1,63})+")
MAX_SPACE_RULES = 100
MAX_PREFIX_CHARS = 200
SPACE_KEY = re.compile(r"[A-Za-z0-9._~-]{1,64}")


class TenantSettingsRow(DeletedWithTenant, Base):
    __tablename__ = "tenant_settings"

    version: Mapped[int]
    overrides: Mapped[dict[str, Any]] = mapped_column(JSONB)
    updated_at: Mapped[datetime]


def read(tx: Tx) -> tuple[TenantSettings, int]:
    """The settings of the transaction's tenant, and their version (0: never changed)."""
    rows = tx.run(_READ, {"tenant": tx.tenant})
    if not rows:
        return TenantSettings(), 0
    return of_overrides(rows[0].overrides), rows[0].version


def of_overrides(overrides: Mapping[str, Any] | None) -> TenantSettings:
    """The settings of a tenant that has stored these. Names that only a newer release knows are ignored."""
    settings: TenantSettings = _merge(TenantSettings(), overrides or {}, "", {})
    return settings


_READ = text("SELECT overrides, version FROM tenant_settings WHERE tenant_id = :tenant")


def recent(tenant_id: str) -> TenantSettings:
    """The settings, from memory if they are known there: for busy routes that only read them."""

    def read_now() -> tuple[TenantSettings, Sequence[str]]:
        with tenant_tx(tenant_id) as tx:
            return read(tx)[0], [liveness.SETTINGS]

    return liveness.look_up(tenant_id, liveness.SETTINGS, read_now)


def change(tx: Tx, changes: Mapping[str, Any], *, now: datetime, expected_version: int | None = None) -> "Change":
    """Set some settings; the others stay. With an expected version, only if that is the current one.

    Every process uses them when the commit's caller goes on.
    """
    tx.execute(text("SELECT pg_advisory_xact_lock(hashtextextended('settings:' || :tenant, 0))"), {"tenant": tx.tenant})
    current, version = read(tx)
    if expected_version is not None and expected_version != version:
        raise Stale(f"The settings are at version {version} now")
    changed = merge(current, changes)
    overrides = _with(tx.scalar(select(TenantSettingsRow.overrides)) or {}, changes)
    values = {"version": version + 1, "overrides": overrides, "updated_at": now}
    tx.execute(
        insert(TenantSettingsRow)
        .values(tenant_id=tx.tenant, **values)
        .on_conflict_do_update(index_elements=["tenant_id"], set_=values)
    )
    if changed != current:  # every process reads what is recorded
        liveness.record(tx, [liveness.SETTINGS])
    return Change(current, changed, version + 1)


@dataclass(frozen=True)
class Change:
    before: TenantSettings
    after: TenantSettings
    version: int


def merge(current: TenantSettings, changes: Mapping[str, Any]) -> TenantSettings:
    """`current` with these changes, each checked by name, type and range."""
    errors: dict[str, str] = {}
    merged = _merge(current, changes, "", errors)
    if errors:
        raise Invalid.fields(errors)
    settings: TenantSettings = merged
    return settings


def is_origin(origin: Any) -> bool:
    """Whether it is an origin as browsers send it: scheme, host and an optional port, in lower case."""
    try:
        parts = urlsplit(origin)
        port = parts.port
    except (ValueError, AttributeError, TypeError):
        return False
    if not isinstance(origin, str) or parts.scheme not in {"http", "https"} or not parts.hostname:
        return False
    if re.fullmatch(r"[a-z0-9.-]+|[0-9a-f:]+", parts.hostname) is None:
        return False
    return origin == f"{parts.scheme}://{parts.hostname}" + (f":{port}" if port is not None else "")


def _with(stored: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The stored values with these changes. Names that only a newer release knows are kept."""
    merged = dict(stored)
    for name, value in changes.items():
        before = merged.get(name)
        inner = before if isinstance(before, Mapping) else {}
        merged[name] = _with(inner, value) if isinstance(value, Mapping) else value
    return merged


def _merge(current: Any, changes: Mapping[str, Any], prefix: str, errors: dict[str, str]) -> Any:
    """`current` with the valid changes; the others are added to `errors`."""
    known = {entry.name for entry in fields(current)}
    values: dict[str, Any] = {}
    for name, value in changes.items():
        path = f"{prefix}{name}"
        if name not in known:
            errors[path] = f"unknown setting; the settings are {', '.join(sorted(known))}"
            continue
        before = getattr(current, name)
        if is_dataclass(before) and isinstance(value, Mapping):
            values[name] = _merge(before, value, f"{path}.", errors)
            continue
        error = _error_in(path, before, value)
        if error:
            errors[path] = error
        elif isinstance(before, tuple):
            values[name] = tuple(dict.fromkeys(map(_LISTS[path].parse, value)))
        else:
            values[name] = type(before)(value)
    return replace(current, **values)


def _error_in(path: str, before: Any, value: Any) -> str | None:
    """Why this value is not valid for a setting of the type of `before`; None if it is."""
    if isinstance(before, bool):
        return None if isinstance(value, bool) else "true or false"
    if isinstance(before, int):
        minimum, maximum = RANGES[path]
        is_valid = isinstance(value, int) and not isinstance(value, bool) and minimum <= value <= maximum
        return None if is_valid else f"a whole number from {minimum} to {maximum}"
    if isinstance(before, StrEnum):
        choices = [choice.value for choice in type(before)]
        return None if value in choices else " or ".join(choices)
    if isinstance(before, tuple):
        kind = _LISTS[path]
        is_valid = isinstance(value, list) and len(value) <= kind.max_items and None not in map(kind.parse, value)
        return None if is_valid else f"at most {kind.max_items} {kind.items}"
    return "an object"


@dataclass(frozen=True)
class _ListKind:
    """A setting that is a list: how many items, the value of each (None: it is not valid), how a message names them."""

    max_items: int
    parse: Callable[[Any], Any]
    items: str


def _parse_origin(value: Any) -> str | None:
    return value if is_origin(value) else None


def _parse_host(value: Any) -> str | None:
    return value if isinstance(value, str) and HOST.fullmatch(value) else None


def _parse_space_rule(value: Any) -> SpaceRule | None:
    if not isinstance(value, Mapping) or not {"prefix", "space"} <= set(value) <= {"prefix", "space", "visibility"}:
        return None
    rule = SpaceRule(**value)
    has_prefix = isinstance(rule.prefix, str) and _is_path(rule.prefix)
    has_space = isinstance(rule.space, str) and SPACE_KEY.fullmatch(rule.space) is not None
    has_visibility = rule.visibility in ("private", "public")
    return rule if has_prefix and len(rule.prefix) <= MAX_PREFIX_CHARS and has_space and has_visibility else None


def _is_path(prefix: str) -> bool:
    """Rules are about paths: a query, or a route after #, would be ignored, and the rule be for the whole site."""
    has_other = not prefix.isprintable() or any(character in prefix for character in "?#\\")
    return prefix.startswith("/") and not has_other and {".", ".."}.isdisjoint(prefix.split("/"))


_LISTS = {
    "allowed_origins": _ListKind(MAX_ORIGINS, _parse_origin, "origins such as https://wiki.example (no path)"),
    "picture_hosts": _ListKind(
        MAX_PICTURE_HOSTS, _parse_host, "names of hosts such as pictures.example, in lower case"
    ),
    "space_rules": _ListKind(
        MAX_SPACE_RULES,
        _parse_space_rule,
        'rules such as {"prefix": "/docs/", "space": "docs", "visibility": "public"}; a prefix is a path that begins'
        f" with /, of at most {MAX_PREFIX_CHARS} characters, without ? # \\ and parts . or ..",
    ),
}
