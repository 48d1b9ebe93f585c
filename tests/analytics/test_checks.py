"""The check covers boards and quests."""

from sqlalchemy import text

from analytics import checks
from analytics.boards import projection
from tenants.db import tenant_tx, utcnow
from tests.analytics.quests.questing import World


def test_differences_of_boards_and_quests_are_in_one_report(tenant: str) -> None:
    world = World(tenant)
    creator, performer = world.person(), world.person()
    world.done(creator, performer, creator)
    projection.project_all(tenant, now=utcnow)
    report = checks.check(tenant, now=utcnow())
    assert (report.differences, report.boards > 0) == ([], True)
    with tenant_tx(tenant) as tx:
        tx.execute(text("UPDATE users SET experience_points = experience_points + 1, quests_created = 7"))
    found = {difference.where for difference in checks.check(tenant, now=utcnow()).differences}
    assert {"users.experience_points", "users.quests_created"} <= found
