"""Changing a user: rights and sessions, and the boards that follow. A suspended user is on no board."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from analytics import outbox
from analytics.outbox import Kind
from tenants import sessions
from tenants.db import Tx
from tenants.users import User

# What decides on which boards a user is.
SHOWN_ON_BOARDS = frozenset({"segment", "suspended"})


def change_user(tx: Tx, user: User, changes: Mapping[str, Any], *, now: datetime) -> User:
    """Change a user; sessions and boards follow."""
    changed = sessions.change_user(tx, user, dict(changes), now=now)
    if SHOWN_ON_BOARDS & changes.keys():
        outbox.mark_stale(tx, Kind.USER, [str(user.id)])
    return changed
