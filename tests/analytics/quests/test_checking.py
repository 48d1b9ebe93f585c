"""`plaudit check` notices counts and payments that do not add up."""

import pytest
from sqlalchemy import text

from analytics import checks
from analytics.boards import projection
from tenants.db import owner_tx, utcnow
from tests.analytics.quests.questing import World

BREAK = {
    "a count": "UPDATE users SET quests_completed = quests_completed + 1 WHERE quests_completed > 0",
    "a lost payment": "DELETE FROM score_ledger WHERE account = 'xp'",
    "a wrong payment": "UPDATE score_ledger SET delta = 99, score = 99 WHERE account = 'xp'",
    "paid and not complete": "UPDATE quests SET status = 'DISPUTED' WHERE status = 'COMPLETE'",
}


@pytest.mark.parametrize("broken", BREAK)
def test_what_does_not_add_up_is_reported(world: World, broken: str) -> None:
    creator, performer = world.person(), world.person()
    world.done(creator, performer, creator)
    projection.project_all(world.tenant, now=utcnow)
    assert checks.check(world.tenant, now=utcnow()).differences == []
    with owner_tx() as tx:
        tx.execute(text(BREAK[broken].replace("WHERE", f"WHERE tenant_id = '{world.tenant}' AND")))
    found = {difference.where for difference in checks.check(world.tenant, now=utcnow()).differences}
    assert found & {"quests", "users.quests_completed"}, broken
