"""Admins see and end the sessions of users."""

from collections.abc import Callable
from typing import Any
from uuid import uuid4

from flask.testing import FlaskClient

from tenants.users import Role
from tests.people import Caller, client_of, log_in, user_of


def test_an_admin_ends_one_session_of_a_user_or_all_at_once(
    client: FlaskClient, tenant: str, logged: Callable[[], list[dict[str, Any]]]
) -> None:
    first = user_of(client, tenant, username="ada")
    second, third = (Caller(client, tenant, log_in(client, tenant, "ada")["access_token"], first.id) for _ in range(2))
    path = f"/api/v1/users/{first.id}/sessions"
    for admin in (user_of(client, tenant, role=Role.ADMIN), client_of(client, tenant)):
        listed = admin("GET", path).get_json()["items"]
        assert len(listed) == 3
        assert [session["current"] for session in listed] == [False] * 3
        assert listed[0].keys() == {*("id", "ip", "user_agent", "created_at", "last_used_at", "expires_at", "current")}
    newest = listed[0]["id"]
    assert admin("DELETE", f"{path}/{newest}").status_code == 204
    assert [caller("GET", "/api/v1/me").status_code for caller in (first, second, third)] == [200, 200, 401]
    assert admin("DELETE", path).status_code == 204
    assert [caller("GET", "/api/v1/me").status_code for caller in (first, second)] == [401, 401]
    assert client.post("/api/v1/auth/refresh", json={"refresh_token": first.refresh_token}).status_code == 401
    assert admin("GET", path).get_json()["items"] == []
    assert log_in(client, tenant, "ada"), "their password is still theirs"
    actions = [line["action"] for line in logged() if line["action"].startswith("audit.session")]
    assert {"audit.session.ended", "audit.sessions.ended"} <= {*actions}


def test_only_admins_and_only_sessions_of_the_user_who_is_named(client: FlaskClient, tenant: str) -> None:
    admin, user, other = user_of(client, tenant, role=Role.ADMIN), user_of(client, tenant), user_of(client, tenant)
    session = user("GET", "/api/v1/auth/sessions").get_json()["items"][0]["id"]
    for caller in (user, other, client_of(client, tenant, "users:write", "stats:read")):
        for method, path in (("GET", ""), ("DELETE", ""), ("DELETE", f"/{session}")):
            assert caller(method, f"/api/v1/users/{user.id}/sessions{path}").status_code == 403
    for path in (f"{other.id}/sessions/{session}", f"{user.id}/sessions/{uuid4()}", f"{uuid4()}/sessions"):
        assert admin("DELETE", f"/api/v1/users/{path}").status_code == 404, path
    assert user("GET", "/api/v1/me").status_code == 200
