"""People and quests for tests, by the domain."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import text, update

from analytics.quests import creating, steps
from analytics.quests.creating import NewQuest
from analytics.quests.people import Person
from analytics.quests.states import Status
from analytics.quests.steps import NewAttestation
from analytics.quests.tables import Quest
from tenants import users
from tenants.db import tenant_tx, utcnow
from tenants.settings import Quests

OFFER: dict[str, Any] = {
    "title": "Translate the guide",
    "description": "All three chapters, please.",
    "reward_xp": 100,
    "reward_reputation": 5,
}
WORK = "It is done: see chapter three."


@dataclass
class World:
    """A tenant with people who quest."""

    tenant: str
    settings: Quests = field(default_factory=Quests)

    def person(self, *, is_admin: bool = False) -> Person:
        with tenant_tx(self.tenant) as tx:
            user_id = users.ensure_external(tx, f"u-{uuid4().hex[:8]}", now=utcnow())
        return Person(user_id, is_admin=is_admin, by=f"user:{user_id}")

    def create(self, creator: Person, **offer: Any) -> UUID:
        with tenant_tx(self.tenant) as tx:
            return creating.create(tx, NewQuest(**{**OFFER, **offer}), creator, self.settings, now=utcnow()).id

    def claim(self, quest: UUID, performer: Person) -> None:
        with tenant_tx(self.tenant) as tx:
            steps.claim(tx, quest, performer, self.settings)

    def submit(self, quest: UUID, performer: Person, work: str = WORK) -> None:
        with tenant_tx(self.tenant) as tx:
            steps.submit(tx, quest, performer, work)

    def attest(self, quest: UUID, attester: Person, rating: int = 5) -> None:
        with tenant_tx(self.tenant) as tx:
            steps.attest(tx, quest, attester, NewAttestation(rating), self.settings, now=utcnow())

    def done(self, creator: Person, performer: Person, *attesters: Person, **offer: Any) -> UUID:
        """A quest that was created, claimed, submitted and attested."""
        quest = self.create(creator, attestations_required=max(1, len(attesters)), **offer)
        self.claim(quest, performer)
        self.submit(quest, performer)
        for attester in attesters:
            self.attest(quest, attester)
        return quest

    def at(self, status: Status, creator: Person, performer: Person) -> UUID:
        """A quest in this state."""
        quest = self.create(creator)
        if status in {Status.OPEN, Status.EXPIRED, Status.CANCELLED}:
            if status is Status.CANCELLED:
                with tenant_tx(self.tenant) as tx:
                    steps.cancel(tx, quest, creator)
            if status is Status.EXPIRED:
                self.set(quest, status="EXPIRED")
            return quest
        self.claim(quest, performer)
        if status is Status.CLAIMED:
            return quest
        self.submit(quest, performer)
        if status is Status.COMPLETE:
            self.attest(quest, creator)
        if status is Status.DISPUTED:
            with tenant_tx(self.tenant) as tx:
                steps.dispute(tx, quest, creator, "not what was asked for")
        return quest

    def get(self, quest: UUID) -> Quest:
        with tenant_tx(self.tenant) as tx:
            return steps.find(tx, quest)

    def set(self, quest: UUID, **values: Any) -> None:
        with tenant_tx(self.tenant) as tx:
            tx.execute(update(Quest).where(Quest.id == quest).values(**values))

    def let_expire(self, quest: UUID, *, ago: timedelta = timedelta(seconds=1)) -> None:
        self.set(quest, expires_at=utcnow() - ago)

    def suspend(self, person: Person, *, at: datetime | None, until: datetime | None = None) -> None:
        values = {"suspended_at": at, "suspended_until": until}
        with tenant_tx(self.tenant) as tx:
            tx.execute(update(users.User).where(users.User.id == person.user_id).values(**values))

    def rows(self, query: str, **values: Any) -> Sequence[Any]:
        with tenant_tx(self.tenant) as tx:
            return tx.execute(text(query), values).all()

    def user(self, person: Person) -> users.User:
        with tenant_tx(self.tenant) as tx:
            return users.get(tx, person.require_user())

    def tx(self) -> Any:
        return tenant_tx(self.tenant)


def balances(world: World, person: Person) -> tuple[int, int, int]:
    """Points, XP and reputation."""
    user = world.user(person)
    return user.current_score, user.experience_points, user.reputation


def ids(listed: Sequence[Quest]) -> list[UUID]:
    return [quest.id for quest in listed]
