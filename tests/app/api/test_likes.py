"""Likes over HTTP: who may like for whom, and the answer."""

from flask.testing import FlaskClient

from tests.analytics.conftest import make_page
from tests.people import Caller, user_of


def test_a_client_likes_for_its_users_and_a_user_for_themselves(
    client: FlaskClient, sender: Caller, tenant: str, page: str
) -> None:
    assert sender("PUT", f"/api/v1/pages/{page}/like").status_code == 403
    user = user_of(client, tenant)
    assert user("PUT", f"/api/v1/pages/{page}/likes/u-1").status_code == 403
    assert sender("PUT", f"/api/v1/pages/{page}/likes/not%20an%20id").status_code == 422
    assert sender("PUT", "/api/v1/pages/nowhere/likes/u-1").status_code == 404
    assert user("DELETE", "/api/v1/pages/nowhere/like").status_code == 404
    make_page(sender, "other")
    assert user("PUT", "/api/v1/pages/other/like").get_json()["likes"] == 1


def test_an_idempotency_key_on_a_like_gives_the_first_answer_again(sender: Caller, page: str) -> None:
    send = {"Idempotency-Key": "like-1"}
    path = f"/api/v1/pages/{page}/likes/u-1"
    assert sender("PUT", path, headers=send).get_json() == {"liked": True, "likes": 1}
    sender("PUT", f"/api/v1/pages/{page}/likes/u-2")
    again = sender("PUT", path, headers=send)
    assert again.get_json() == {"liked": True, "likes": 1}
    assert again.headers["Idempotent-Replay"] == "true"
