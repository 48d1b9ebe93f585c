"""Answers in memory: whatever ends a credential ends them in every process, and no tenant gets another's."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID, uuid4

import pytest
from flask.testing import FlaskClient
from sqlalchemy import text

from analytics import user_changes
from tenants import credentials, liveness, purging, registry, session_use, sessions, users
from tenants import settings as tenant_settings
from tenants.db import owner_tx, platform_tx, tenant_tx, utcnow
from tenants.settings import VisiblePages
from tenants.users import Role
from tests.app.cli.conftest import Run, on_ours
from tests.beacons import ORIGIN
from tests.people import PASSWORD, Caller, client_of, static_token_of, user_of
from tests.tenants.conftest import trusted_memory

__all__ = ["on_ours", "trusted_memory"]


@dataclass
class Wiki:
    """A tenant whose credentials were all used, so that this process remembers them."""

    tenant: str
    admin: Caller
    app: Caller
    member: Caller
    key: str
    # The newest change when the credentials were ready.
    before: int

    def member_session(self) -> str:
        with tenant_tx(self.tenant) as tx:
            return str(session_use.list_for(tx, users.get(tx, UUID(self.member.id)), now=utcnow())[0].id)

    def names_elsewhere(self) -> set[str]:
        """The names that other processes drop when they read the feed."""
        return {name for names in changes_of(self.tenant, since=self.before).values() for name in names}


def changes_of(tenant: str, *, since: int = 0) -> dict[int, list[str]]:
    newer = text("SELECT id, names FROM credential_changes WHERE tenant_id = :tenant AND id > :since")
    with platform_tx() as tx:
        return {row.id: row.names for row in tx.run(newer, {"tenant": tenant, "since": since})}


@pytest.fixture
def wiki(client: FlaskClient, tenant: str, trusted_memory: None) -> Wiki:
    admin = user_of(client, tenant, role=Role.ADMIN, username="boss")
    app, member = client_of(client, tenant), user_of(client, tenant, username="ada")
    key = str(app("POST", "/api/v1/keys", json={"origins": [ORIGIN]}).get_json()["key"])
    app("PUT", "/api/v1/actions/catalog/post", json={"points": 10})
    app("PATCH", "/api/v1/settings", json={"integrity": {"points_per_hour": 5, "suspend_automatically": True}})
    return Wiki(tenant, admin, app, member, key, before=max(changes_of(tenant)))


def status(caller: Caller) -> int:
    return caller("GET", "/api/v1/me").status_code


def log_out(wiki: Wiki) -> None:
    assert wiki.member("POST", "/api/v1/auth/logout").status_code == 204


def end_the_session(wiki: Wiki) -> None:
    assert wiki.member("DELETE", f"/api/v1/auth/sessions/{wiki.member_session()}").status_code == 204


def reuse_the_refresh_token(wiki: Wiki) -> None:
    body = {"refresh_token": wiki.member.refresh_token}
    answers = [wiki.member.http.post("/api/v1/auth/refresh", json=body).status_code for _ in range(2)]
    assert answers == [200, 401]


def suspend(wiki: Wiki) -> None:
    assert wiki.admin("PATCH", f"/api/v1/users/{wiki.member.id}", json={"suspended": True}).status_code == 200


def suspend_by_the_rule(wiki: Wiki) -> None:
    claim = {"actionId": str(uuid4()), "actionType": "post", "timestamp": utcnow().isoformat()}
    assert wiki.member("POST", "/api/v1/scores/update", json=claim).status_code == 200


def suspend_in_a_job(wiki: Wiki) -> None:
    with tenant_tx(wiki.tenant) as tx:
        user_changes.change_user(tx, users.get(tx, UUID(wiki.member.id)), {"suspended": True}, now=utcnow())


def reset_the_password(wiki: Wiki) -> None:
    offered = wiki.admin("POST", f"/api/v1/users/{wiki.member.id}/password-reset").get_json()
    body = {"reset_token": offered["reset_token"], "password": PASSWORD}
    assert wiki.member.http.post("/api/v1/auth/reset", json=body).status_code == 204


def erase(wiki: Wiki) -> None:
    assert wiki.admin("DELETE", f"/api/v1/users/{wiki.member.id}").status_code == 200


def delete_the_tenant(wiki: Wiki) -> None:
    with owner_tx() as tx:
        registry.mark_deleted(tx, wiki.tenant, now=utcnow())


@pytest.mark.parametrize(
    "end",
    [
        log_out,
        end_the_session,
        reuse_the_refresh_token,
        suspend,
        suspend_by_the_rule,
        suspend_in_a_job,
        reset_the_password,
        erase,
        delete_the_tenant,
    ],
)
def test_whatever_ends_a_session_is_effective_on_the_next_call(wiki: Wiki, end: Callable[[Wiki], None]) -> None:
    session = wiki.member_session()
    assert status(wiki.member) == 200
    end(wiki)
    assert status(wiki.member) == 401
    assert {f"session:{session}", f"user:{wiki.member.id}", liveness.TENANT} & wiki.names_elsewhere()


def test_a_new_role_is_effective_on_the_next_call(wiki: Wiki) -> None:
    assert wiki.member("GET", "/api/v1/users").status_code == 403
    assert wiki.admin("PATCH", f"/api/v1/users/{wiki.member.id}", json={"role": "admin"}).status_code == 200
    assert wiki.member("GET", "/api/v1/users").status_code == 200
    assert f"user:{wiki.member.id}" in wiki.names_elsewhere()


def test_what_a_user_sees_changes_on_the_next_call(wiki: Wiki) -> None:
    def sees() -> str:
        return str(wiki.member("GET", "/api/v1/me").get_json()["sees"])

    assert sees() == "all"
    for changes, expected in (({"sees_private": False}, "public"), ({"sees_private": True}, "all")):
        assert wiki.admin("PATCH", f"/api/v1/users/{wiki.member.id}", json=changes).status_code == 200
        assert sees() == expected
    assert wiki.admin("PATCH", f"/api/v1/users/{wiki.member.id}", json={"sees_private": False}).status_code == 200
    assert wiki.admin("PATCH", "/api/v1/settings", json={"signup_sees": "all"}).status_code == 200
    assert sees() == "all"
    assert {f"user:{wiki.member.id}", liveness.SETTINGS} <= wiki.names_elsewhere()


def test_a_revoked_client_token_or_key_is_refused_on_the_next_call(wiki: Wiki) -> None:
    another = client_of(wiki.app.http, wiki.tenant, "stats:read")
    assert (status(wiki.app), status(another), credentials.find_key(wiki.key) is not None) == (200, 200, True)
    revoked = another.http.post("/oauth/revoke", data={"token": another.token}, auth=(another.id, another.secret))
    assert (revoked.status_code, status(another)) == (200, 401)
    assert wiki.admin("DELETE", f"/api/v1/keys/{wiki.key}").status_code == 204
    assert credentials.find_key(wiki.key) is None
    assert wiki.admin("DELETE", f"/api/v1/clients/{wiki.app.id}").status_code == 204
    assert status(wiki.app) == 401
    kinds = {name.partition(":")[0] for name in wiki.names_elsewhere()}
    assert {"token", "key", "client"} <= kinds


@pytest.mark.parametrize(
    ("end", "of_tenant"),
    [
        (end_the_session, False),
        (suspend, False),
        (reset_the_password, False),
        (erase, False),
        (delete_the_tenant, True),
    ],
)
def test_whatever_ends_all_sessions_of_a_user_ends_their_static_tokens_on_the_next_call(
    wiki: Wiki, end: Callable[[Wiki], None], of_tenant: bool
) -> None:
    own, tenants = static_token_of(wiki.member), static_token_of(wiki.app)
    assert (status(own), status(tenants)) == (200, 200)
    end(wiki)
    assert (status(own), status(tenants)) == (200 if end is end_the_session else 401, 401 if of_tenant else 200)


def test_a_revoked_static_token_is_refused_on_the_next_call_and_elsewhere(wiki: Wiki) -> None:
    own, tenants = static_token_of(wiki.member), static_token_of(wiki.app)
    assert (status(own), status(tenants)) == (200, 200)
    assert wiki.member("DELETE", f"/api/v1/tokens/{own.id}").status_code == 204
    assert (status(own), status(tenants)) == (401, 200)
    assert wiki.admin("DELETE", f"/api/v1/tokens/{tenants.id}").status_code == 204
    assert status(tenants) == 401
    assert {f"token:static:{own.id}", f"token:static:{tenants.id}"} <= wiki.names_elsewhere()


def test_a_key_has_the_tenants_new_origins_at_once(wiki: Wiki) -> None:
    assert credentials.find_key(wiki.key) is not None
    wiki.admin("PATCH", "/api/v1/settings", json={"allowed_origins": ["https://new.example"]})
    found = credentials.find_key(wiki.key)
    assert found is not None
    assert "https://new.example" in found.origins


@pytest.mark.parametrize(
    "command", ["user suspend", "user role", "client revoke", "key revoke", "token revoke", "tenant delete"]
)
def test_a_command_is_effective_in_other_processes_when_it_returns(wiki: Wiki, on_ours: Run, command: str) -> None:
    assert (status(wiki.member), status(wiki.app), credentials.find_key(wiki.key) is not None) == (200, 200, True)
    token = static_token_of(wiki.app)
    assert status(token) == 200
    arguments = {
        "user suspend": [wiki.tenant, "ada"],
        "user role": [wiki.tenant, "ada", "admin"],
        "client revoke": [wiki.tenant, wiki.app.id],
        "key revoke": [wiki.tenant, wiki.key],
        "token revoke": [wiki.tenant, token.id],
        "tenant delete": [wiki.tenant, "--yes"],
    }[command]
    done = on_ours(*command.split(), *arguments)
    assert done.returncode == 0, done.stderr
    match command:
        case "user suspend" | "tenant delete":
            assert status(wiki.member) == 401
        case "user role":
            assert wiki.member("GET", "/api/v1/users").status_code == 200
        case "client revoke":
            assert status(wiki.app) == 401
        case "token revoke":
            assert status(token) == 401
        case "key revoke":
            assert credentials.find_key(wiki.key) is None


def test_no_tenant_gets_an_answer_of_another(wiki: Wiki, other_tenant: str) -> None:
    """Each is known here under its own tenant; the same names elsewhere are unknown, also when asked first or last."""
    session, jti = wiki.member_session(), "j"
    for _ in range(2):
        assert sessions.rights_of(other_tenant, session) is None
        assert sessions.rights_of(wiki.tenant, session) is not None
        assert credentials.client_token_is_valid(wiki.tenant, wiki.app.id, jti)
        assert not credentials.client_token_is_valid(other_tenant, wiki.app.id, jti)
        assert credentials.find_key(wiki.key) is not None
        assert credentials.find_key(wiki.key.replace(wiki.tenant, other_tenant)) is None
    with tenant_tx(wiki.tenant) as tx:
        tenant_settings.change(tx, {"signup_sees": "all"}, now=utcnow())
    seen = [tenant_settings.recent(tenant).signup_sees for tenant in (wiki.tenant, other_tenant) * 2]
    assert seen == [VisiblePages.ALL, VisiblePages.PUBLIC] * 2
    credentials.revoke_token(other_tenant, jti, expires_at=utcnow() + timedelta(hours=1))
    assert credentials.client_token_is_valid(wiki.tenant, wiki.app.id, jti), "another tenant's revocation"


def test_a_token_of_another_client_is_another_answer(wiki: Wiki) -> None:
    """The names of a client and a token cannot be shifted into each other."""
    assert credentials.client_token_is_valid(wiki.tenant, wiki.app.id, "j")
    for client_id, jti in ((f"{wiki.app.id} token:j", ""), ("", f"j client:{wiki.app.id}"), ("x", "j")):
        assert not credentials.client_token_is_valid(wiki.tenant, client_id, jti)


def test_an_expired_session_is_refused_from_memory_too(wiki: Wiki, monkeypatch: pytest.MonkeyPatch) -> None:
    session = wiki.member_session()
    assert sessions.rights_of(wiki.tenant, session) is not None
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + sessions.SESSION_TTL.total_seconds())
    assert sessions.rights_of(wiki.tenant, session) is None


def test_a_tenant_that_is_created_again_has_its_own_settings(wiki: Wiki) -> None:
    with tenant_tx(wiki.tenant) as tx:
        tenant_settings.change(tx, {"signup_open": True}, now=utcnow())
    assert tenant_settings.recent(wiki.tenant).signup_open
    delete_the_tenant(wiki)
    assert tenant_settings.recent(wiki.tenant).signup_open, "its rows are there until they are purged"
    purging.purge(wiki.tenant)
    with owner_tx() as tx:
        registry.create(tx, wiki.tenant, name="Again", now=utcnow())
    assert not tenant_settings.recent(wiki.tenant).signup_open
    assert liveness.TENANT in wiki.names_elsewhere(), "the purge leaves what other processes have yet to read"
