"""Changing a user: rights and sessions, and the boards that follow. A suspended user is on no board."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from analytics import outbox
from analytics.outbox import Kind
from tenants import profiles, sessions, suspensions, users
from tenants.db import Tx, tenant_tx
from tenants.users import User

# What decides on which boards a user is, and what rows show of them.
SHOWN_ON_BOARDS = frozenset({"segment", "segments", "suspended", "suspended_until"}) | profiles.SHOWN


@dataclass(frozen=True)
class PutUser:
    user: User
    is_new: bool
    # The names of the fields that differed.
    changed: list[str]


def put_external(tx: Tx, external_id: str, profile: Mapping[str, Any], *, now: datetime) -> PutUser:
    """Create a tenant app's own user, or change what differs. The same again changes nothing."""
    user_id, is_new = users.find_or_create(tx, external_id, now=now)
    user = users.get(tx, user_id)
    trimmed = {name: value.strip() if name == "display_name" and value else value for name, value in profile.items()}
    differing = {name: value for name, value in trimmed.items() if getattr(user, name) != value}
    if differing:
        change_user(tx, user, differing, now=now)
    return PutUser(user, is_new, sorted(differing))


def change_user(tx: Tx, user: User, changes: Mapping[str, Any], *, now: datetime) -> User:
    """Change a user; sessions and boards follow."""
    changed = sessions.change_user(tx, user, dict(changes), now=now)
    if SHOWN_ON_BOARDS & changes.keys():
        outbox.mark_stale(tx, Kind.USER, [str(user.id)])
    return changed


def _never() -> bool:
    return False


def end_suspensions(tenant_id: str, *, now: datetime, is_over: Callable[[], bool] = _never) -> int:
    """Show users again whose suspension has come to its end, step by step, until none is left or `is_over` says so.

    Returns how many they were.
    """
    ended = 0
    while True:
        with tenant_tx(tenant_id) as tx:
            user_ids = suspensions.end_due(tx, now=now)
            if user_ids:
                outbox.mark_stale(tx, Kind.USER, [str(user_id) for user_id in user_ids])
        ended += len(user_ids)
        if len(user_ids) < suspensions.MAX_PER_STEP or is_over():
            return ended
