"""Lists: each filter alone in the order of its index, several within a bound, and what is past its time as EXPIRED."""

import re
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import text

from analytics.quests import listing
from analytics.quests.listing import Filter
from analytics.quests.states import Status
from tenants.db import Tx, owner_tx, utcnow
from tests.analytics.quests.questing import World, ids


def read(world: World, wanted: Filter, *, limit: int = 100, pages: int = 50) -> list[UUID]:
    """All of a list, slice by slice."""
    found: list[UUID] = []
    after = None
    for _ in range(pages):
        with world.tx() as tx:
            listed = listing.read(tx, wanted, after=after, limit=limit, now=utcnow())
        assert len(listed.quests) <= limit
        found += ids(listed.quests)
        after = listed.next
        if after is None:
            return found
    raise AssertionError("a list that does not end")


def test_every_filter_finds_its_own_newest_first_in_slices(world: World) -> None:
    creator, other, performer = world.person(), world.person(), world.person()
    first, second, third = (world.create(creator, tags=["docs", f"t{place}"]) for place in range(3))
    of_other = world.create(other, tags=["code"])
    world.claim(first, performer)
    world.claim(of_other, performer)
    for limit in (1, 2, 100):
        assert read(world, Filter(), limit=limit) == [of_other, third, second, first]
        assert read(world, Filter(creator_id=creator.user_id), limit=limit) == [third, second, first]
        assert read(world, Filter(tag="docs"), limit=limit) == [third, second, first]
        assert read(world, Filter(status=Status.OPEN), limit=limit) == [third, second]
        assert read(world, Filter(status=Status.CLAIMED), limit=limit) == [of_other, first]
        assert read(world, Filter(performer_id=performer.user_id), limit=limit) == [of_other, first]
        assert read(world, Filter(status=Status.OPEN, tag="docs"), limit=limit) == [third, second]
        assert read(world, Filter(Status.CLAIMED, "docs", creator.user_id, performer.user_id), limit=limit) == [first]
    world.submit(first, performer)
    assert read(world, Filter(performer_id=performer.user_id)) == [first, of_other], "by the last change"
    assert read(world, Filter(tag="nothing")) == []


def test_what_a_user_may_attest_is_submitted_by_others_and_not_attested_by_them(world: World) -> None:
    creator, performer, attester = world.person(), world.person(), world.person()
    waiting, attested = (world.create(creator, attestations_required=2) for _ in range(2))
    for quest in (waiting, attested):
        world.claim(quest, performer)
        world.submit(quest, performer)
    world.attest(attested, attester)
    assert read(world, Filter(to_attest_by=attester.user_id), limit=1) == [waiting]
    assert read(world, Filter(to_attest_by=creator.user_id)) == [attested, waiting]
    assert read(world, Filter(to_attest_by=performer.user_id)) == []
    for until, listed in ((None, []), (timedelta(hours=1), []), (timedelta(seconds=-1), [waiting])):
        world.suspend(performer, at=utcnow(), until=utcnow() + until if until else None)
        assert read(world, Filter(to_attest_by=attester.user_id)) == listed, until


def test_what_is_past_its_time_is_listed_as_expired_at_once(world: World) -> None:
    creator, performer = world.person(), world.person()
    marked = world.at(Status.EXPIRED, creator, performer)
    past = [world.at(status, creator, performer) for status in (Status.OPEN, Status.CLAIMED)]
    for quest in past:
        world.let_expire(quest)
    newest = world.at(Status.EXPIRED, creator, performer)
    for limit in (1, 3, 10):
        assert read(world, Filter(status=Status.EXPIRED), limit=limit) == [newest, *past[::-1], marked]
        assert read(world, Filter(Status.EXPIRED, creator_id=creator.user_id), limit=limit)[1:3] == past[::-1]
    assert read(world, Filter(status=Status.OPEN)) == []
    assert read(world, Filter(Status.CLAIMED, creator_id=creator.user_id)) == []
    assert {listing.shown_status(world.get(quest), now=utcnow()) for quest in past} == {Status.EXPIRED}
    earlier = utcnow() - timedelta(minutes=1)
    assert listing.shown_status(world.get(past[0]), now=earlier) is Status.OPEN


def test_several_filters_look_at_a_bounded_part_and_continue(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "MAX_SCANNED", 3)
    creator = world.person()
    wanted = world.create(creator, tags=["rare"])
    for _ in range(7):
        world.create(creator)
    both = Filter(creator_id=creator.user_id, tag="rare")
    with world.tx() as tx:
        listed = listing.read(tx, both, after=None, limit=10, now=utcnow())
    assert (listed.quests, listed.next is None) == ([], False), "an empty slice that continues"
    assert read(world, both, limit=10) == [wanted]


MANY = 100_000
FILL = text("""
    INSERT INTO quests (tenant_id, id, status, version, round, creator_id, performer_id, title, description,
                        requirements, tags, reward_xp, reward_reputation, attestations_required, min_rating,
                        created_at, updated_at, claimed_at, expires_at)
    SELECT :tenant, gen_random_uuid(), (ARRAY['OPEN', 'CLAIMED', 'PENDING_REVIEW', 'COMPLETE', 'DISPUTED', 'EXPIRED',
                                              'CANCELLED'])[1 + n % 7], 1, 1,
           (CAST(:people AS uuid[]))[1 + n % 50], (CAST(:people AS uuid[]))[1 + (n * 7) % 50], 'a quest',
           'of very many', '{}', '{}', 10, 1, 1, 3, now() - n * interval '1 minute', now() - n * interval '7 second',
           now(), CASE WHEN n % 1000 = 0 THEN now() - interval '1 second' END
    FROM generate_series(1, :many) AS n
""")
TAG = text("""
    INSERT INTO quest_tags (tenant_id, quest_id, tag, created_at)
    SELECT tenant_id, id, 't' || (ascii(right(id::text, 1)) % 10), created_at FROM quests WHERE tenant_id = :tenant
""")


@pytest.fixture
def many(world: World) -> list[Any]:
    """A tenant with very many quests, as PostgreSQL knows it after an ANALYZE."""
    people = [world.person().user_id for _ in range(50)]
    with owner_tx() as tx:
        tx.execute(FILL, {"tenant": world.tenant, "people": people, "many": MANY})
        tx.execute(TAG, {"tenant": world.tenant})
        tx.execute(text("ANALYZE quests, quest_tags, attestations"))
    return people


def plan_of(tx: Tx, wanted: Filter, after: Any) -> str:
    lists, filters = listing._plan(wanted, utcnow())
    assert not filters
    query = listing._part(lists, after=after, limit=21)
    statement = str(query.compile(tx.get_bind(), compile_kwargs={"literal_binds": True}))
    # As the application's statements are: with the tenant named.
    for table in ("quests", "quest_tags"):
        own = f"FROM {table} WHERE {table}.tenant_id = '{tx.tenant}'"
        statement = re.sub(rf"FROM {table}\s+WHERE", f"{own} AND", statement)
        statement = re.sub(rf"FROM {table}\s+ORDER", f"{own} ORDER", statement)
    explain = "EXPLAIN (ANALYZE, TIMING OFF, SUMMARY OFF) " + statement.replace(":", "\\:")
    return "\n".join(tx.scalars(text(explain)))


def test_of_a_hundred_thousand_a_filter_is_read_in_the_order_of_its_index_and_several_within_a_bound(
    world: World, many: list[Any]
) -> None:
    alone = [
        Filter(),
        *(Filter(status=status) for status in Status),
        Filter(tag="t7"),
        Filter(creator_id=many[3]),
        Filter(performer_id=many[3]),
    ]
    for wanted in alone:
        for after in (None, (utcnow() - timedelta(days=2), many[0])):
            with world.tx() as tx:
                plan = plan_of(tx, wanted, after)
            assert "Seq Scan" not in plan, f"{wanted}\n{plan}"
            read_rows = [int(rows) for rows in re.findall(r"Scan.*actual rows=(\d+)", plan)]
            most = 21 if wanted.status is not Status.EXPIRED else 50  # those past their time are sorted
            assert read_rows
            assert max(read_rows) <= most, f"{wanted}\n{plan}"
            thrown_away = [int(rows) for rows in re.findall(r"Rows Removed by Filter: (\d+)", plan)]
            assert sum(thrown_away) <= 50, f"{wanted}\n{plan}"
            if wanted.status is not Status.EXPIRED:
                assert "Sort" not in plan, f"{wanted}\n{plan}"
        with world.tx() as tx:
            assert len(listing.read(tx, wanted, after=None, limit=20, now=utcnow()).quests) == 20
    both = Filter(Status.DISPUTED, "t3", creator_id=many[5], performer_id=many[6])
    with world.tx() as tx:
        tx.execute(text("SET LOCAL statement_timeout = '2s'"))
        listed = listing.read(tx, both, after=None, limit=20, now=utcnow())
        to_attest = listing.read(tx, Filter(to_attest_by=many[0]), after=None, limit=20, now=utcnow())
    assert all(quest.status == Status.DISPUTED for quest in listed.quests)
    assert len(to_attest.quests) == 20
