"""The tables: what the database itself refuses."""

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError, ProgrammingError

from analytics.quests.states import Status
from tests.analytics.quests.questing import World


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE quests SET status = 'DONE'",
        "UPDATE attestations SET rating = 6",
        "INSERT INTO attestations SELECT * FROM attestations",
        "UPDATE users SET experience_points = -1",
    ],
)
def test_what_cannot_be_is_refused(world: World, statement: str) -> None:
    creator, performer = world.person(), world.person()
    world.at(Status.COMPLETE, creator, performer)
    with pytest.raises(IntegrityError), world.tx() as tx:
        tx.execute(text(statement))


@pytest.mark.parametrize("table", ["quests", "quest_tags", "attestations", "quest_history", "failed_rewards"])
def test_nothing_is_deleted_by_requests(world: World, table: str) -> None:
    with pytest.raises(ProgrammingError, match="permission denied"), world.tx() as tx:
        tx.execute(text(f"DELETE FROM {table}"))
