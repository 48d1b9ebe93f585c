"""Likes over HTTP: who may like for whom, and the answer."""

from concurrent.futures import ThreadPoolExecutor

from flask import Flask
from flask.testing import FlaskClient

from analytics import privacy
from app.settings import Settings
from tenants import users
from tenants.db import tenant_tx, utcnow
from tenants.users import Role
from tests.analytics.conftest import make_page
from tests.citus import not_on_citus
from tests.people import Caller, client_of, user_of
from tests.service import blocked_connections, eventually


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


def test_a_user_sees_whether_they_like_a_page_and_only_clients_and_admins_who_does(
    client: FlaskClient, sender: Caller, tenant: str, page: str
) -> None:
    user, admin = user_of(client, tenant), user_of(client, tenant, role=Role.ADMIN)
    path = f"/api/v1/pages/{page}"
    assert user("GET", f"{path}/like").get_json() == {"liked": False, "likes": 0, "liked_at": None}
    user("PUT", f"{path}/like")
    sender("PUT", f"{path}/likes/u-1")
    own = user("GET", f"{path}/like").get_json()
    assert (own["liked"], own["likes"]) == (True, 2)
    likers = sender("GET", f"{path}/likes").get_json()["items"]
    assert [liker["user"]["external_id"] for liker in likers] == ["u-1", None]
    assert (likers[1]["user"]["id"], likers[1]["liked_at"]) == (user.id, own["liked_at"])
    assert set(likers[1]["user"]) >= {"id", "external_id", "username", "avatar_url"}
    assert admin("GET", f"{path}/likes").get_json()["items"] == likers
    first = admin("GET", f"{path}/likes?limit=1").get_json()
    assert admin("GET", f"{path}/likes?limit=1&cursor={first['next_cursor']}").get_json() == {
        "items": likers[1:],
        "next_cursor": None,
    }
    user("DELETE", f"{path}/like")
    assert user("GET", f"{path}/like").get_json() == {"liked": False, "likes": 1, "liked_at": None}
    assert len(sender("GET", f"{path}/likes").get_json()["items"]) == 1
    for caller, what, status in (
        (user, f"{path}/likes", 403),
        (sender, f"{path}/like", 403),
        (client_of(client, tenant, "events:write"), f"{path}/likes", 403),
        (user, "/api/v1/pages/nowhere/like", 404),
        (sender, "/api/v1/pages/nowhere/likes", 404),
        (sender, f"{path}/likes?cursor=zzz", 422),
    ):
        assert caller("GET", what).status_code == status, what


def test_what_a_user_likes_is_seen_by_them_clients_and_admins_and_of_private_pages_only_by_who_may(
    client: FlaskClient, sender: Caller, tenant: str
) -> None:
    for name, visibility in (("open", "public"), ("closed", "public"), ("last", "public")):
        make_page(sender, name, visibility=visibility)
    stranger, other = user_of(client, tenant, sees_private=False), user_of(client, tenant)
    for name in ("open", "closed", "last"):
        stranger("PUT", f"/api/v1/pages/{name}/like")

    def liked(caller: Caller, whose: str, query: str = "") -> list[str]:
        answer = caller("GET", f"/api/v1/users/{whose}/likes{query}")
        assert answer.status_code == 200, answer.text
        return [item["page"]["external_id"] for item in answer.get_json()["items"]]

    everything = ["last", "closed", "open"]
    assert liked(stranger, "me") == liked(sender, stranger.id) == everything
    make_page(sender, "closed", visibility="private")
    assert (liked(stranger, "me"), liked(sender, stranger.id)) == (["last", "open"], everything)
    assert liked(user_of(client, tenant, role=Role.ADMIN), stranger.id) == everything
    assert stranger("GET", "/api/v1/pages/closed/like").status_code == 404
    first = stranger("GET", "/api/v1/users/me/likes?limit=2").get_json()
    assert [item["page"]["external_id"] for item in first["items"]] == ["last"], "fewer, and it continues"
    assert liked(stranger, "me", f"?limit=2&cursor={first['next_cursor']}") == ["open"]
    assert other("GET", f"/api/v1/users/{stranger.id}/likes").status_code == 404
    assert sender("GET", "/api/v1/users/me/likes").status_code == 403
    assert sender("GET", "/api/v1/users/ext:nobody/likes").status_code == 404
    assert client_of(client, tenant, "events:write")("GET", f"/api/v1/users/{other.id}/likes").status_code == 403


@not_on_citus
def test_a_like_for_a_user_who_is_erased_meanwhile_is_one_of_a_new_user(
    app: Flask, sender: Caller, tenant: str, page: str, settings: Settings
) -> None:
    make_page(sender, "other")
    sender("PUT", "/api/v1/pages/other/likes/u-1")

    def like() -> tuple[int, int]:
        own = Caller(app.test_client(), tenant, sender.token, sender.id)
        answer = own("PUT", f"/api/v1/pages/{page}/likes/u-1")
        return answer.status_code, answer.get_json()["likes"]

    with ThreadPoolExecutor(1) as another:
        with tenant_tx(tenant) as tx:
            erased = privacy.erase(tx, users.find(tx, "ext:u-1"), by_admin=True, now=utcnow())
            liked = another.submit(like)
            eventually(lambda: blocked_connections(settings.database_url or "") == 1)
        assert liked.result() == (200, 1)
    with tenant_tx(tenant) as tx:
        assert users.find(tx, "ext:u-1").id != erased.user_id
