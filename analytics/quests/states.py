"""The state machine of quests: the one table of who may take which step in which state. Pure.

COMPLETE, EXPIRED and CANCELLED are final. A quest that is OPEN or CLAIMED expires when its time has come, whatever step
was meant; work that was submitted in time never does.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, StrEnum


class Status(StrEnum):
    OPEN = "OPEN"
    CLAIMED = "CLAIMED"
    PENDING_REVIEW = "PENDING_REVIEW"
    COMPLETE = "COMPLETE"
    DISPUTED = "DISPUTED"
    EXPIRED = "EXPIRED"
    CANCELLED = "CANCELLED"


EXPIRING = (Status.OPEN, Status.CLAIMED)


class Step(StrEnum):
    CREATE = "create"
    CLAIM = "claim"
    RELEASE = "release"
    SUBMIT = "submit"
    WITHDRAW = "withdraw"
    ATTEST = "attest"
    DISPUTE = "dispute"
    RESOLVE = "resolve"
    CANCEL = "cancel"
    # By nobody: the step that finds a quest past its time, and a job.
    EXPIRE = "expire"


@dataclass(frozen=True)
class Roles:
    """What a person is to a quest."""

    is_creator: bool = False
    is_performer: bool = False
    is_admin: bool = False


class Who(Enum):
    """Who may take a step: the roles that may, and the rule that refuses everybody else (its code, and its words)."""

    OTHERS = (lambda r: not r.is_creator, "own_quest", "You cannot claim your own quest")
    PEERS = (lambda r: not r.is_performer, "own_work", "You cannot attest your own work")
    PERFORMER = (lambda r: r.is_performer, "not_performer", "Only who has claimed the quest may do this")
    PERFORMER_OR_ADMIN = (
        lambda r: r.is_performer or r.is_admin,
        "not_performer",
        "Only who has claimed the quest, or an admin, may do this",
    )
    CREATOR_OR_ADMIN = (
        lambda r: r.is_creator or r.is_admin,
        "not_creator",
        "Only who has created the quest, or an admin, may do this",
    )
    ADMIN = (lambda r: r.is_admin, "admins_only", "Only an admin may do this")
    INVOLVED = (
        lambda r: r.is_creator or r.is_performer or r.is_admin,
        "not_involved",
        "Only the creator, the performer or an admin may do this",
    )
    UNINVOLVED_ADMIN = (
        lambda r: r.is_admin and not r.is_creator and not r.is_performer,
        "uninvolved_admins_only",
        "Only an admin who neither created nor performed the quest may do this",
    )

    def __init__(self, allows: Callable[[Roles], bool], code: str, words: str) -> None:
        self.allows = allows
        self.code = code
        self.words = words


@dataclass(frozen=True)
class Move:
    """Where a step may lead, and who may take it."""

    to: tuple[Status, ...]
    who: Who


MOVES: dict[Step, dict[Status, Move]] = {
    Step.CLAIM: {Status.OPEN: Move((Status.CLAIMED,), Who.OTHERS)},
    Step.RELEASE: {Status.CLAIMED: Move((Status.OPEN,), Who.PERFORMER_OR_ADMIN)},
    Step.SUBMIT: {Status.CLAIMED: Move((Status.PENDING_REVIEW,), Who.PERFORMER)},
    Step.WITHDRAW: {Status.PENDING_REVIEW: Move((Status.CLAIMED,), Who.PERFORMER)},
    Step.ATTEST: {
        Status.PENDING_REVIEW: Move((Status.PENDING_REVIEW, Status.COMPLETE, Status.DISPUTED), Who.PEERS),
    },
    Step.DISPUTE: {Status.PENDING_REVIEW: Move((Status.DISPUTED,), Who.INVOLVED)},
    Step.RESOLVE: {
        Status.DISPUTED: Move((Status.COMPLETE, Status.OPEN, Status.CANCELLED), Who.UNINVOLVED_ADMIN),
    },
    Step.CANCEL: {
        Status.OPEN: Move((Status.CANCELLED,), Who.CREATOR_OR_ADMIN),
        Status.CLAIMED: Move((Status.CANCELLED,), Who.ADMIN),
        Status.PENDING_REVIEW: Move((Status.CANCELLED,), Who.ADMIN),
    },
    Step.EXPIRE: {status: Move((Status.EXPIRED,), Who.ADMIN) for status in EXPIRING},
}
