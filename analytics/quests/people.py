"""Who takes a step, what they are to the quest, and the rules that refuse them."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import text

from analytics.quests.states import MOVES, Roles, Status, Step
from analytics.quests.tables import Quest
from tenants.db import Tx, array
from tenants.errors import Conflict, Forbidden, Invalid, NotFound, PreconditionRequired, Stale, Unavailable


class QuestNotFound(NotFound):
    """Does not exist, or belongs to another tenant."""

    title = "There is no such quest"


class WrongState(Conflict):
    """The quest's state does not allow the step; the code names the state."""

    def __init__(self, status: Status, step: Step) -> None:
        self.code = f"quest_{status.lower()}"
        allowed = " or ".join(MOVES[step])
        super().__init__(f"The quest is {status}; to {step} it, it must be {allowed}")


class QuestExpired(WrongState):
    """Its time has come: whoever meets this makes it EXPIRED before they answer."""

    def __init__(self, step: Step) -> None:
        super().__init__(Status.EXPIRED, step)


class AlreadyWitnessed(Conflict):
    code = "quest_attested"
    title = "Somebody has attested the work, so it cannot be withdrawn"


class PerformerSuspended(Conflict):
    code = "performer_suspended"
    title = "The performer is suspended: their work cannot be attested or paid"


class RuleBroken(Forbidden):
    """A rule of quests does not allow it; the code names the rule."""

    def __init__(self, code: str, detail: str) -> None:
        self.code = code
        super().__init__(detail)


class Contended(Unavailable):
    code = "overloaded"
    title = "Another request changes the same quest: try again"


@dataclass(frozen=True)
class Person:
    """Who acts. A client or a command may act as an admin without being a user."""

    user_id: UUID | None
    is_admin: bool
    # `user:<id>`, `client:<id>`, `job` or `command`.
    by: str

    def roles(self, quest: Quest) -> Roles:
        is_user = self.user_id is not None
        return Roles(
            is_creator=is_user and quest.creator_id == self.user_id,
            is_performer=is_user and quest.performer_id == self.user_id,
            is_admin=self.is_admin,
        )

    def require_user(self) -> UUID:
        if self.user_id is None:
            raise Invalid.field("user", "only a user does this: say who, by your own id for them")
        return self.user_id


JOB = Person(None, is_admin=True, by="job")


@dataclass(frozen=True)
class Expected:
    """What a caller expects of the quest's version: `If-Match`."""

    version: int | None
    is_required: bool = False

    def check(self, quest: Quest) -> None:
        if self.version is None and self.is_required:
            raise PreconditionRequired("This tenant needs If-Match with the quest's ETag for every step")
        if self.version is not None and self.version != quest.version:
            raise Stale(f"The quest is at version {quest.version} now")


ANY_VERSION = Expected(None)


def require_state(quest: Quest, step: Step, *, is_past: bool) -> None:
    """Raise if the quest's state does not allow the step."""
    status = Status(quest.status)
    if is_past:
        raise QuestExpired(step)
    if status not in MOVES[step]:
        raise WrongState(status, step)


def require_role(quest: Quest, step: Step, person: Person) -> None:
    """Raise if the person may not take the step, which the state allows."""
    who = MOVES[step][Status(quest.status)].who
    if not who.allows(person.roles(quest)):
        raise RuleBroken(who.code, who.words)


@dataclass(frozen=True)
class LockedPerson:
    id: UUID
    is_suspended: bool
    is_erased: bool


def lock(tx: Tx, user_ids: Iterable[UUID]) -> dict[UUID, LockedPerson]:
    """Lock these users in the order of their ids, as the group commit does, before any quest is locked."""
    rows: list[Any] = tx.run(_LOCK, {"tenant": tx.tenant, "users": array(sorted(set(user_ids)))})
    return {row.id: LockedPerson(row.id, row.is_suspended, row.is_erased) for row in rows}


_LOCK = text("""
    SELECT id, suspended_at IS NOT NULL AND (suspended_until IS NULL OR suspended_until > statement_timestamp())
               AS is_suspended,
           erased_at IS NOT NULL AS is_erased FROM users
    WHERE tenant_id = :tenant AND id = ANY(CAST(:users AS uuid[])) ORDER BY id FOR NO KEY UPDATE
""")
