"""The check covers boards, how users are shown, and quests."""

from uuid import UUID, uuid4

from sqlalchemy import text

from analytics import checks, outbox
from analytics.boards import projection
from tenants import users
from tenants.db import tenant_tx, utcnow
from tests.analytics.quests.questing import World
from tests.people import Caller


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


def test_users_whose_new_name_or_segments_no_board_follows_are_found(tenant: str, player: Caller) -> None:
    claim = {"actionId": str(uuid4()), "actionType": "post", "timestamp": utcnow().isoformat()}
    assert player("POST", "/api/v1/scores/update", json=claim).status_code == 200
    projection.project_all(tenant, now=utcnow)

    def found() -> set[tuple[str, str]]:
        report = checks.check(tenant, now=utcnow())
        return {(one.where, one.member) for one in report.differences if one.where.startswith("user_stats")}

    changes = {"display_name": "Ada", "segments": ["eu", "staff"]}
    with tenant_tx(tenant) as tx:  # without the outbox
        users.change(tx, users.get(tx, UUID(player.id)), changes, now=utcnow())
    wrong = {(f"user_stats.{name}", f"user {player.id}") for name in ("segments", "profile_changed_at")}
    assert found() == wrong
    with tenant_tx(tenant) as tx:
        outbox.mark_stale(tx, outbox.Kind.USER, [player.id])
    assert found() == set(), "late, not wrong"
    projection.project_all(tenant, now=utcnow)
    assert checks.check(tenant, now=utcnow()).differences == []
