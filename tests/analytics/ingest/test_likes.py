"""Likes: one for each page and user; of two events the newer decides, in whatever order they arrive."""

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import permutations, product
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient
from sqlalchemy import text

from analytics.ingest import likes, writes
from analytics.ingest.reasons import Result
from analytics.ingest.writes import EventKind, Item, WriteRequest
from tenants import users
from tenants.db import owner_tx, tenant_tx, utcnow
from tests.analytics.conftest import likes_of, put_page
from tests.citus import not_on_citus
from tests.people import Caller, user_of
from tests.plans import assert_read_in_order, plans_of


def test_fifty_identical_likes_at_once_are_one(app: Flask, sender: Caller, tenant: str, page: str) -> None:
    def like(_: int) -> tuple[int, int]:
        own = Caller(app.test_client(), tenant, sender.token, sender.id)
        answer = own("PUT", f"/api/v1/pages/{page}/likes/u-1")
        return answer.status_code, answer.get_json()["likes"]

    with ThreadPoolExecutor(50) as pool:
        assert set(pool.map(like, range(50))) == {(200, 1)}
    assert likes_of(tenant, page) == (1, 1)


def test_like_unlike_like_is_one_and_the_count_is_right_each_time(client: FlaskClient, tenant: str, page: str) -> None:
    user = user_of(client, tenant)
    path = f"/api/v1/pages/{page}/like"
    steps = [("PUT", True, 1), ("PUT", True, 1), ("DELETE", False, 0), ("DELETE", False, 0), ("PUT", True, 1)]
    for method, liked, total in steps:
        assert user(method, path).get_json() == {"liked": liked, "likes": total}
    assert likes_of(tenant, page) == (1, 1)


def test_many_users_at_once_each_get_a_count_of_their_own(app: Flask, sender: Caller, tenant: str, page: str) -> None:
    def like(number: int) -> int:
        own = Caller(app.test_client(), tenant, sender.token, sender.id)
        return int(own("PUT", f"/api/v1/pages/{page}/likes/u-{number}").get_json()["likes"])

    with ThreadPoolExecutor(40) as pool:
        assert sorted(pool.map(like, range(80))) == list(range(1, 81))
    assert likes_of(tenant, page) == (80, 80)


def test_in_a_batch_the_order_decides(sender: Caller, tenant: str, page: str) -> None:
    def send(*types: str) -> None:
        batch = [{"type": kind, "page": page, "user": "u-1"} for kind in types]
        assert sender("POST", "/api/v1/events", json={"events": batch}).get_json()["accepted"] == len(types)

    send("like", "unlike", "like", "unlike")
    assert likes_of(tenant, page) == (0, 0)
    send("unlike", "like")
    assert likes_of(tenant, page) == (1, 1)


def test_a_like_keeps_its_time_when_it_is_repeated(sender: Caller, tenant: str, page: str) -> None:
    sender("PUT", f"/api/v1/pages/{page}/likes/u-1")
    first = state_of(tenant)
    sender("PUT", f"/api/v1/pages/{page}/likes/u-1")
    again = state_of(tenant)
    assert again.liked_at == first.liked_at
    assert again.decided_at > first.decided_at


def state_of(tenant: str, user: str = "u-1") -> Any:
    """The row of a user's only like: liked, liked_at, decided_at."""
    with tenant_tx(tenant) as tx:
        return tx.execute(
            text("""
                SELECT l.liked, l.liked_at, l.decided_at FROM page_likes l
                JOIN users u ON u.tenant_id = l.tenant_id AND u.id = l.user_id WHERE u.external_id = :user
            """),
            {"user": user},
        ).one()


START = datetime(2026, 3, 1, tzinfo=UTC)


def happen(tenant: str, page: str, user: str, *events: tuple[EventKind, int]) -> None:
    """These events happened at so many minutes after START, and arrive one after the other."""
    for kind, minute in events:
        at = START + timedelta(minutes=minute)
        with tenant_tx(tenant) as tx:
            request = WriteRequest(tenant, [Item(kind, page, at, user=user)], utcnow())
            writes.apply(tx, request)
        assert [outcome.result for outcome in request.outcomes] == [Result.ACCEPTED], "also if it is outdated"


LIKE, UNLIKE = EventKind.LIKE, EventKind.UNLIKE


@pytest.mark.parametrize("kinds", list(product([LIKE, UNLIKE], repeat=4)))
def test_whatever_the_order_of_arrival_the_newest_event_decides(
    tenant: str, page: str, kinds: tuple[EventKind, ...]
) -> None:
    events = list(zip(kinds, range(4), strict=True))
    for number, order in enumerate(permutations(events)):
        happen(tenant, page, f"u-{number}", *order)
    states = [state_of(tenant, f"u-{number}") for number in range(24)]
    assert {state.liked for state in states} == {kinds[-1] is LIKE}
    assert {state.decided_at for state in states} == {START + timedelta(minutes=3)}
    expected = 24 if kinds[-1] is LIKE else 0
    assert likes_of(tenant, page) == (expected, expected)


def test_all_orders_in_one_commit_end_the_same(tenant: str, page: str) -> None:
    """The same events as one request: of several changes of one like, each sees what those before it left."""
    items = [
        Item(kind, page, START + timedelta(minutes=minute), user=f"u-{number}")
        for number, order in enumerate(permutations([(LIKE, 0), (UNLIKE, 1), (LIKE, 2), (UNLIKE, 3)]))
        for kind, minute in order
    ]
    with tenant_tx(tenant) as tx:
        writes.apply(tx, WriteRequest(tenant, items, utcnow()))
    assert likes_of(tenant, page) == (0, 0)
    assert {state_of(tenant, f"u-{number}").liked for number in range(24)} == {False}


def test_of_two_events_at_one_moment_the_later_arrival_decides(tenant: str, page: str) -> None:
    happen(tenant, page, "u-1", (LIKE, 0), (UNLIKE, 0))
    happen(tenant, page, "u-2", (UNLIKE, 0), (LIKE, 0))
    assert [state_of(tenant, user).liked for user in ("u-1", "u-2")] == [False, True]


def test_a_late_unlike_between_two_likes_moves_the_time_of_the_like(tenant: str, page: str) -> None:
    happen(tenant, page, "u-1", (LIKE, 0), (LIKE, 10))
    assert state_of(tenant).liked_at == START
    happen(tenant, page, "u-1", (UNLIKE, 5))
    assert state_of(tenant).liked_at == START + timedelta(minutes=10)


def test_a_direct_call_decides_whatever_is_known_from_the_future(sender: Caller, tenant: str, page: str) -> None:
    ahead = utcnow() + timedelta(minutes=4)
    like = {"type": "like", "page": page, "user": "u-1", "occurred_at": ahead.isoformat()}
    assert sender("POST", "/api/v1/events", json={"events": [like]}).get_json()["accepted"] == 1
    assert sender("DELETE", f"/api/v1/pages/{page}/likes/u-1").get_json() == {"liked": False, "likes": 0}
    assert sender("PUT", f"/api/v1/pages/{page}/likes/u-1").get_json() == {"liked": True, "likes": 1}
    assert state_of(tenant).decided_at == ahead + timedelta(microseconds=2)


def test_a_retry_of_last_week_does_not_change_what_was_decided_since(sender: Caller, tenant: str, page: str) -> None:
    sender("DELETE", f"/api/v1/pages/{page}/likes/u-1")
    old = (utcnow() - timedelta(days=6)).isoformat()
    like = {"type": "like", "page": page, "user": "u-1", "occurred_at": old}
    assert sender("POST", "/api/v1/events", json={"events": [like]}).get_json()["accepted"] == 1
    assert likes_of(tenant, page) == (0, 0)


@not_on_citus
def test_a_thousand_changes_of_one_like_write_its_row_once(tenant: str, page: str) -> None:
    """Each used to be a round of its own, in a commit that requests of other tenants wait for."""
    now, kinds = utcnow(), (EventKind.LIKE, EventKind.UNLIKE)
    items = [Item(kinds[number % 2], page, now, user="ada", is_dated=False) for number in range(999)]
    written = "pg_stat_get_xact_tuples_{}('page_likes'::regclass)"  # also of earlier transactions not reported yet
    rows = text(f"SELECT {written.format('inserted')} + {written.format('updated')}")
    with tenant_tx(tenant) as tx:
        before = tx.scalars(rows).one()
        writes.apply(tx, WriteRequest(tenant, items, now))
        assert tx.scalars(rows).one() - before == 1
    assert likes_of(tenant, page) == (1, 1)


def walk(read: Any, key: str, *, limit: int, meanwhile: Any = None) -> list[Any]:
    """All of a list, slice by slice; after the first slice something happens."""
    found: list[Any] = []
    after = None
    while rows := read(after, limit):
        found += [getattr(row, key) for row in rows]
        after = (rows[-1].liked_at, getattr(rows[-1], key))
        if meanwhile is not None:
            meanwhile()
            meanwhile = None
    return found


def test_lists_of_likes_are_newest_first_and_consistent_whatever_happens_between_two_slices(
    sender: Caller, tenant: str
) -> None:
    pages = [put_page(tenant, f"p-{number}") for number in range(3)]
    for user in ("a", "b", "c", "d", "e"):
        happen(tenant, "p-0", user, (LIKE, 1 if user in "abc" else 2))  # equal times
    with tenant_tx(tenant) as tx:
        ids = {user: users.find(tx, f"ext:{user}").id for user in "abcde"}

    def likers(after: Any, limit: int) -> Any:
        with tenant_tx(tenant) as tx:
            return likes.of_page(tx, pages[0], after=after, limit=limit)

    in_order = sorted((ids[user] for user in "de"), reverse=True) + sorted((ids[user] for user in "abc"), reverse=True)
    for limit in (1, 2, 5, 9):
        assert walk(likers, "user_id", limit=limit) == in_order

    def change() -> None:
        last_name = next(user for user in "abc" if ids[user] == in_order[-1])
        first_name = next(user for user in "de" if ids[user] == in_order[0])
        happen(tenant, "p-0", last_name, (UNLIKE, 3), (LIKE, 4))  # not seen yet, and at the beginning now
        happen(tenant, "p-0", first_name, (UNLIKE, 5), (LIKE, 6))  # seen, and liked again

    assert walk(likers, "user_id", limit=2, meanwhile=change) == in_order[:-1], "none twice, no unchanged one missing"
    assert walk(likers, "user_id", limit=2)[:2] == [in_order[0], in_order[-1]]

    happen(tenant, "p-1", "a", (LIKE, 9))
    happen(tenant, "p-2", "a", (LIKE, 9), (UNLIKE, 10))
    with tenant_tx(tenant) as tx:
        assert [row.page_id for row in likes.of_user(tx, ids["a"], after=None, limit=9)] == [pages[1], pages[0]]
        assert likes.liked_at(tx, pages[1], ids["a"]) == START + timedelta(minutes=9)
        assert likes.liked_at(tx, pages[2], ids["a"]) is None
        assert likes.liked_at(tx, pages[2], ids["b"]) is None
        assert (likes.total(tx, pages[0]), likes.total(tx, pages[2])) == (5, 0)


MANY = 200
FILL = [
    """
    INSERT INTO users (tenant_id, id, external_id, created_at, updated_at)
    SELECT :tenant, gen_random_uuid(), 'u-' || n, now(), now() FROM generate_series(1, :many) n
    """,
    """
    INSERT INTO pages (tenant_id, external_id, space_key, title, url, created_at, updated_at)
    SELECT :tenant, 'p-' || n, 'eng', 'Page', '/p-' || n, now(), now() FROM generate_series(1, :many) n
    """,
    """
    INSERT INTO page_likes (tenant_id, page_id, user_id, liked_at, decided_at)
    SELECT :tenant, p.id, u.id,
           CASE WHEN hashtext(u.id::text) % 10 <> 0 THEN date_trunc('hour', now()) - p.id % 24 * interval '1 hour' END,
           now()
    FROM pages p CROSS JOIN users u WHERE p.tenant_id = :tenant AND u.tenant_id = :tenant
    """,
    "ANALYZE page_likes",
]


def test_of_many_likes_those_of_a_page_and_of_a_user_are_read_in_the_order_of_an_index(tenant: str) -> None:
    with owner_tx() as tx:
        for statement in FILL:
            tx.execute(text(statement), {"tenant": tenant, "many": MANY} if ":tenant" in statement else {})
    with tenant_tx(tenant) as tx:
        row = tx.execute(text("SELECT page_id, user_id FROM page_likes WHERE liked_at IS NOT NULL LIMIT 1")).one()
        now = utcnow()
        for read in (
            partial(likes.of_page, tx, row.page_id, after=None, limit=21),
            partial(likes.of_page, tx, row.page_id, after=(now, row.user_id), limit=21),
            partial(likes.of_user, tx, row.user_id, after=None, limit=21),
            partial(likes.of_user, tx, row.user_id, after=(now, row.page_id), limit=21),
        ):
            assert len(read()) == 21
            (plan,) = plans_of(tx, read)
            assert_read_in_order(plan, most=21)
