"""Security events: the closed set of what the log has for audits, and how much of an address it shows.

A line of one has the action `audit.<event>`. docs/operating.md lists them for those who ship and search logs.
"""

from enum import StrEnum
from ipaddress import ip_network
from typing import Literal, get_args

# How much of a caller's address a line has.
Addresses = Literal["cut", "whole", "none"]
ADDRESSES: tuple[Addresses, ...] = get_args(Addresses)

_shown: Addresses = "cut"


class SecurityEvent(StrEnum):
    SESSION_STARTED = "session.started"
    SESSION_ENDED = "session.ended"
    SESSIONS_ENDED = "sessions.ended"
    LOGIN_FAILED = "login.failed"
    LIMIT_REACHED = "limit.reached"
    PASSWORD_CHANGED = "password.changed"  # noqa: S105  names of events
    PASSWORD_RESET_OFFERED = "password.reset_offered"  # noqa: S105
    PASSWORD_RESET = "password.reset"  # noqa: S105
    USER_REGISTERED = "user.registered"
    USER_CREATED = "user.created"
    USER_CHANGED = "user.changed"
    USER_PROFILE_CHANGED = "user.profile_changed"
    USER_EXPORTED = "user.exported"
    USER_ERASED = "user.erased"
    BOARD_EXPORTED = "board.exported"
    CLIENT_CREATED = "client.created"
    CLIENT_ROTATED = "client.rotated"
    CLIENT_REVOKED = "client.revoked"
    TOKEN_REVOKED = "token.revoked"  # noqa: S105
    STATIC_TOKEN_CREATED = "static_token.created"  # noqa: S105
    STATIC_TOKEN_REVOKED = "static_token.revoked"  # noqa: S105
    KEY_CREATED = "key.created"
    KEY_SIGNING_SECRET_CHANGED = "key.signing_secret_changed"  # noqa: S105
    KEY_REVOKED = "key.revoked"
    SIGNING_KEY_ROTATED = "signing_key.rotated"
    SETTINGS_CHANGED = "settings.changed"
    WEIGHTS_CHANGED = "weights.changed"
    ACTION_CHANGED = "action.changed"
    ACTION_REMOVED = "action.removed"
    SCORE_CORRECTED = "score.corrected"
    FLAG_RESOLVED = "flag.resolved"
    QUEST_RESOLVED = "quest.resolved"
    QUEST_TEMPLATE_CREATED = "quest_template.created"
    QUEST_TEMPLATE_CHANGED = "quest_template.changed"
    QUEST_TEMPLATE_DELETED = "quest_template.deleted"
    QUEST_CATEGORY_SET = "quest_category.set"
    QUEST_CATEGORY_DELETED = "quest_category.deleted"
    REWARD_RETRIED = "reward.retried"
    TENANT_CREATED = "tenant.created"
    TENANT_LIMITED = "tenant.limited"
    TENANT_DELETING = "tenant.deleting"
    TENANT_DELETED = "tenant.deleted"
    BACKUP_RESTORED = "backup.restored"


def show_addresses(how: Addresses) -> None:
    """Decide for this process how much of addresses its lines have."""
    global _shown  # noqa: PLW0603  one setting per process
    _shown = how


def shown_address(address: str | None) -> str | None:
    """The address as a line may have it: the network that it is in, unless the operator has decided otherwise."""
    if not address or _shown == "none":
        return None
    if _shown == "whole":
        return address
    return str(ip_network(f"{address}/{48 if ':' in address else 24}", strict=False))
