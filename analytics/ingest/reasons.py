"""Why an event is rejected: the closed list of reasons, and which reason a result or a refused claim has."""

import math
from enum import Enum, StrEnum
from typing import assert_never

from analytics.scores.actions import ImpossibleTime
from analytics.scores.catalog import UnknownAction
from tenants.errors import DomainError, Invalid

# Of the text that says why an event was refused: it may repeat what was sent.
MAX_DETAIL_CHARS = 200


class Reason(StrEnum):
    UNKNOWN_PAGE = "unknown_page"
    UNKNOWN_TYPE = "unknown_type"
    INVALID = "invalid"
    TOO_OLD = "too_old"
    IN_THE_FUTURE = "in_the_future"
    UNKNOWN_ACTION = "unknown_action"
    LIMITED = "limited"
    BOT = "bot"


class Refused(Exception):
    """An event that is rejected, and why."""

    def __init__(self, code: Reason, detail: str, *, retry_after_s: float | None = None) -> None:
        self.code = code
        self.detail = detail[:MAX_DETAIL_CHARS]
        # How long until the same would be accepted; None: unknown, or never.
        self.retry_after_s = math.ceil(retry_after_s) if retry_after_s is not None else None


class Result(Enum):
    """What became of a view, a like or an unlike."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    UNKNOWN_PAGE = "unknown_page"
    UNKNOWN_USER = "unknown_user"
    LIMITED = "limited"  # the user would be one more than the tenant may have

    @property
    def reason(self) -> Reason | None:
        """Why the event is rejected; None: it is not."""
        match self:
            case Result.ACCEPTED | Result.DUPLICATE:
                return None
            case Result.UNKNOWN_PAGE:
                return Reason.UNKNOWN_PAGE
            case Result.UNKNOWN_USER:
                return Reason.INVALID
            case Result.LIMITED:
                return Reason.LIMITED
            case _:
                assert_never(self)


def reason_of(error: DomainError) -> Reason:
    """Why an action that a tenant's app claims is rejected."""
    if isinstance(error, ImpossibleTime):  # from a caller who may backfill views
        return Reason.TOO_OLD
    if isinstance(error, UnknownAction):
        return Reason.UNKNOWN_ACTION
    return Reason.INVALID if isinstance(error, Invalid) else Reason.LIMITED
