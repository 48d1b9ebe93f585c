"""Likes: one for each page and user, whatever is sent, in the order it arrives."""

from concurrent.futures import ThreadPoolExecutor

from flask import Flask
from flask.testing import FlaskClient

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
    from sqlalchemy import text

    from tenants.db import tenant_tx

    def when() -> object:
        with tenant_tx(tenant) as tx:
            return tx.execute(text("SELECT created_at FROM page_likes")).scalar_one()

    sender("PUT", f"/api/v1/pages/{page}/likes/u-1")
    first = when()
    sender("PUT", f"/api/v1/pages/{page}/likes/u-1")
    assert when() == first
