"""Likes: one for each page and user; of two events the newer decides, in whatever order they arrive."""

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from itertools import permutations, product
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient
from sqlalchemy import text

from analytics.ingest import writes
from analytics.ingest.reasons import Result
from analytics.ingest.writes import EventKind, Item, WriteRequest
from tenants.db import tenant_tx, utcnow
from tests.analytics.conftest import likes_of
from tests.people import Caller, user_of


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
    for method, liked, likes in steps:
        assert user(method, path).get_json() == {"liked": liked, "likes": likes}
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
