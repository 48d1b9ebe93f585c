"""A restore revives no credential that was revoked, changed or erased after the backup."""

import json
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest
import requests
from psycopg import sql

from app.run.data_folder import read_state
from tenants.db import utcnow
from tenants.reader_signatures import sign
from tests import secrets_seen
from tests.beacons import FIREFOX, ORIGIN
from tests.conftest import reachable_folder
from tests.people import PASSWORD
from tests.secrets_seen import SEEN
from tests.service import Service, eventually, plaudit, plaudit_json, running_service

NEW_PASSWORD = "quite another battery"
# One answer of the service: whether a credential was accepted.
Check = Callable[[], bool]


@dataclass
class Installation:
    """A tenant with everything that can be revoked, over HTTP as its owners use it."""

    service: Service
    tenant: str
    client_id: str = ""
    client_secret: str = ""
    checks: dict[str, Check] = field(default_factory=dict)

    def call(self, method: str, path: str, token: str = "", **options: Any) -> requests.Response:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        headers |= options.pop("headers", {})
        answer = requests.request(method, self.service.url + path, headers=headers, timeout=60, **options)
        if answer.content and answer.headers.get("Content-Type") == "application/json":
            secrets_seen.collect(answer.json())
        return answer

    def admin(self, method: str, path: str, body: Any = None) -> Any:
        answer = self.call(method, path, self.token_of(self.client_id, self.client_secret), json=body)
        assert answer.ok, answer.text
        return answer.json() if answer.content else None

    def token_of(self, client_id: str, secret: str) -> str:
        answer = self.ask_token(client_id, secret)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["access_token"])

    def ask_token(self, client_id: str, secret: str) -> requests.Response:
        return self.call("POST", "/oauth/token", data={"grant_type": "client_credentials"}, auth=(client_id, secret))

    def client(self) -> tuple[str, str]:
        made = self.admin("POST", "/api/v1/clients", {"name": "app", "scopes": ["stats:read"]})
        return made["client_id"], made["client_secret"]

    def log_in(self, username: str, password: str = PASSWORD) -> requests.Response:
        body = {"tenant": self.tenant, "username": username, "password": password}
        return self.call("POST", "/api/v1/auth/login", json=body)

    def user(self, username: str) -> dict[str, Any]:
        """A user who has just logged in."""
        body = {"tenant": self.tenant, "username": username, "email": f"{username}@example.org", "password": PASSWORD}
        assert self.call("POST", "/api/v1/auth/register", json=body).status_code == 201
        logged_in: dict[str, Any] = self.log_in(username).json()
        return logged_in

    def refresh(self, token: str) -> requests.Response:
        return self.call("POST", "/api/v1/auth/refresh", json={"refresh_token": token})

    def can_refresh(self, logged_in: dict[str, Any]) -> bool:
        """Whether the newest refresh token is valid. It is used, and replaced."""
        answer = self.refresh(logged_in["refresh_token"])
        if answer.ok:
            logged_in["refresh_token"] = answer.json()["refresh_token"]
        return answer.ok

    def is_me(self, token: str) -> bool:
        return self.call("GET", "/api/v1/me", token).status_code == 200

    def can_view(self, key: str, signed_by: str = "") -> bool:
        body: dict[str, str] = {"page": "home"}
        if signed_by:
            signature = sign(signed_by, self.tenant, "reader", at=int(utcnow().timestamp()))
            body |= {"user": "reader", "user_signature": signature, "type": "like"}
        headers = {"Origin": ORIGIN, "Content-Type": "text/plain", "User-Agent": FIREFOX}
        return self.call("POST", f"/api/v1/beacon?key={key}", data=json.dumps(body), headers=headers).ok

    def accepted(self) -> list[str]:
        return [name for name, check in self.checks.items() if check()]


def install(service: Service) -> Installation:
    tenant = f"t{secrets.token_hex(4)}"
    assert plaudit("tenant", "create", tenant, "--name", tenant, data_dir=service.data_dir).returncode == 0
    made = plaudit_json("client", "create", tenant, "--scopes", "admin", data_dir=service.data_dir)
    secrets_seen.collect(made)
    new = Installation(service, tenant, made["client_id"], made["client_secret"])
    new.admin("PATCH", "/api/v1/settings", {"signup_open": True})
    page = {"space": "eng", "title": "Home", "url": "https://wiki.example/home", "visibility": "public"}
    new.admin("PUT", "/api/v1/pages/home", page)
    return new


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with reachable_folder() as folder, running_service(folder / "data") as running:
        yield running


def restored(file: Path, data_dir: Path, *options: str) -> Any:
    done = plaudit("restore", str(file), "--yes", "--json", *options, data_dir=data_dir)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if "backup.restored" in line]
    assert lines, done.stderr
    audited = json.loads(lines[0])
    answer = json.loads(done.stdout)
    assert audited["data"]["appliedAgain"] == answer["applied_again"]
    return answer


def test_what_was_revoked_after_the_backup_is_still_refused_after_the_restore(service: Service, tmp_path: Path) -> None:
    at, file = install(service), tmp_path / "b"
    revoke: list[Callable[[], Any]] = []

    revoked, rotated, with_token = at.client(), at.client(), at.client()
    tokens = [at.token_of(*client) for client in (revoked, with_token)]
    at.checks["a revoked client's token"] = lambda: at.is_me(tokens[0])
    at.checks["a revoked client's secret"] = lambda: at.ask_token(*revoked).ok
    revoke.append(lambda: at.admin("DELETE", f"/api/v1/clients/{revoked[0]}"))
    at.checks["a secret that was rotated away"] = lambda: at.ask_token(*rotated).ok
    rotations: list[str] = []

    def rotate_twice() -> None:  # the secret before the last is valid for another day
        rotations.extend(at.admin("POST", f"/api/v1/clients/{rotated[0]}/rotate")["client_secret"] for _ in range(2))

    revoke.append(rotate_twice)
    at.checks["a revoked access token"] = lambda: at.is_me(tokens[1])
    revoke.append(lambda: at.call("POST", "/oauth/revoke", data={"token": tokens[1]}, auth=with_token))

    key, signing = (at.admin("POST", "/api/v1/keys", {"origins": [ORIGIN]}) for _ in range(2))
    at.checks["a revoked key"] = lambda: at.can_view(key["key"])
    revoke.append(lambda: at.admin("DELETE", f"/api/v1/keys/{key['key']}"))
    at.checks["a signing secret that was changed"] = lambda: at.can_view(signing["key"], signing["signing_secret"])
    revoke.append(lambda: at.admin("POST", f"/api/v1/keys/{signing['key']}/signing-secret"))

    leaver, refresher = at.user("leaver"), at.user("refresher")
    at.checks["a session that was ended"] = lambda: at.is_me(leaver["access_token"])
    at.checks["the refresh token of a session that was ended"] = lambda: at.can_refresh(leaver)
    revoke.append(lambda: at.call("POST", "/api/v1/auth/logout", leaver["access_token"]))
    newer_tokens: list[str] = []

    def use_refresh_token() -> None:
        newer_tokens.append(at.refresh(refresher["refresh_token"]).json()["refresh_token"])

    revoke.append(use_refresh_token)

    changer, resetter = at.user("changer"), at.user("resetter")
    at.checks["a password that was changed"] = lambda: at.log_in("changer").ok
    passwords = {"old": PASSWORD, "new": NEW_PASSWORD}
    revoke.append(lambda: at.call("POST", "/api/v1/auth/password", changer["access_token"], json=passwords))
    reset = at.admin("POST", f"/api/v1/users/{resetter['user']['id']}/password-reset")["reset_token"]

    def use_reset() -> bool:
        body = {"reset_token": reset, "password": NEW_PASSWORD}
        return at.call("POST", "/api/v1/auth/reset", json=body).ok

    at.checks["a session from before a reset"] = lambda: at.is_me(resetter["access_token"])
    revoke.append(use_reset)

    browser = requests.Session()
    login = {"tenant": at.tenant, "username": "resetter", "password": PASSWORD}
    own_page = {"X-Plaudit-Dashboard": "1"}
    signed_in = browser.post(f"{service.url}/dashboard/login", json=login, headers=own_page, timeout=60)
    assert signed_in.status_code == 204, signed_in.text
    SEEN.update(cookie.value or "" for cookie in browser.cookies)
    at.checks["a dashboard's cookie"] = lambda: browser.get(f"{service.url}/api/v1/me", timeout=60).ok

    demoted, suspended, erased = at.user("demoted"), at.user("suspended"), at.user("erased")
    at.admin("PATCH", f"/api/v1/users/{demoted['user']['id']}", {"role": "admin"})
    at.checks["a demoted admin"] = lambda: (
        at.call("GET", "/api/v1/clients", at.log_in("demoted").json()["access_token"]).ok
    )
    revoke.append(lambda: at.admin("PATCH", f"/api/v1/users/{demoted['user']['id']}", {"role": "member"}))
    at.checks["a suspended user's session"] = lambda: at.is_me(suspended["access_token"])
    at.checks["a suspended user's password"] = lambda: at.log_in("suspended").ok
    revoke.append(lambda: at.admin("PATCH", f"/api/v1/users/{suspended['user']['id']}", {"suspended": True}))
    erased_id = erased["user"]["id"]
    assert at.call("PUT", "/api/v1/pages/home/like", erased["access_token"]).ok
    at.checks["an erased user's session"] = lambda: at.is_me(erased["access_token"])
    at.checks["an erased user's password"] = lambda: at.log_in("erased").ok
    revoke.append(lambda: at.admin("DELETE", f"/api/v1/users/{erased_id}"))

    assert at.accepted() == list(at.checks), "all are valid before the backup"
    assert plaudit("backup", str(file), data_dir=service.data_dir).returncode == 0
    for end in revoke:
        end()
    assert at.accepted() == [], "none is after they were revoked"

    said = restored(file, service.data_dir)
    assert at.accepted() == []
    assert not use_reset(), "a used reset token"
    assert at.refresh(newer_tokens[0]).ok, "the newest refresh token"
    assert not at.refresh(refresher["refresh_token"]).ok, "one that was used"
    assert at.log_in("changer", NEW_PASSWORD).ok, "the newer password is valid"
    assert at.ask_token(rotated[0], rotations[-1]).ok, "the newer secret is valid"
    state = read_state(service.data_dir)
    assert state is not None
    with psycopg.connect(state["addresses"]["database_url"]) as owner:
        liked = owner.execute("SELECT user_id FROM page_likes WHERE tenant_id = %s", [at.tenant]).fetchall()
        erased_row = owner.execute(
            "SELECT username, email, erased_at IS NOT NULL FROM users WHERE id = %s", [erased_id]
        )
        assert erased_row.fetchone() == (None, None, True)
    assert len(liked) == 1, "an erased user's like is gone, a reader's is not"
    assert said["valid_again"] == said["revoked"] == {}
    assert said["tenants_back"] == []
    again = said["applied_again"]
    assert {
        name: again[name]
        for name in ("clients revoked", "client secrets rotated", "access tokens revoked", "publishable keys revoked")
    } == {
        "clients revoked": 1,
        "client secrets rotated": 1,
        "access tokens revoked": 1,
        "publishable keys revoked": 1,
    }
    assert (again["passwords changed"], again["users erased"]) == (2, 1)


def test_a_new_server_counts_what_is_valid_again_and_revoke_all_revokes_it(service: Service, tmp_path: Path) -> None:
    at, file = install(service), tmp_path / "b"
    app, reader = at.client(), at.user("reader")
    token = at.token_of(*app)
    key = at.admin("POST", "/api/v1/keys", {"origins": [ORIGIN]})["key"]
    at.checks = {
        "a client's token": lambda: at.is_me(token),
        "a client's secret": lambda: at.ask_token(*app).ok,
        "a session": lambda: at.is_me(reader["access_token"]),
        "a refresh token": lambda: at.can_refresh(reader),
    }
    reset = at.admin("POST", f"/api/v1/users/{reader['user']['id']}/password-reset")["reset_token"]
    assert plaudit("backup", str(file), data_dir=service.data_dir).returncode == 0
    lose_database(service)
    said = plaudit("restore", str(file), "--yes", data_dir=service.data_dir)
    assert said.returncode == 0, said.stderr
    assert "Valid again, even if they were revoked" in said.stdout
    assert "Restore again with --revoke-all" in said.stdout
    assert at.accepted() == list(at.checks), "nobody knows whether they were revoked"

    lose_database(service)
    answer = restored(file, service.data_dir, "--revoke-all")
    assert {*answer["revoked"]} == {"sessions", "client secrets", "password resets", "signing keys"}
    assert {*answer["valid_again"]} == {"publishable keys", "passwords"}
    at.checks.pop("a client's token")  # a process that runs meanwhile knows the deleted signing key for a minute
    assert at.accepted() == []
    body = {"reset_token": reset, "password": NEW_PASSWORD}
    assert at.call("POST", "/api/v1/auth/reset", json=body).status_code == 401
    assert at.log_in("reader").ok
    assert at.can_view(key)
    rotated = plaudit_json("client", "rotate", at.tenant, app[0], data_dir=service.data_dir)
    secrets_seen.collect(rotated)
    assert at.ask_token(app[0], rotated["client_secret"]).ok
    assert not at.ask_token(*app).ok, "the old secret, which is valid for a day after other rotations"
    eventually(lambda: not at.is_me(token), within_s=120, every_s=2)


def lose_database(service: Service) -> None:
    """Lose everything in PostgreSQL, as when a machine is lost. Its secrets have been kept."""
    state = read_state(service.data_dir)
    assert state is not None
    with psycopg.connect(state["addresses"]["database_url"]) as owner:
        tables = owner.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
        for (table,) in tables:
            owner.execute(sql.SQL("DROP TABLE IF EXISTS {} CASCADE").format(sql.Identifier(table)))


def test_a_login_that_does_not_see_every_row_cannot_restore(service: Service, tmp_path: Path) -> None:
    """What it does not see it could not apply again."""
    file = tmp_path / "b"
    assert plaudit("backup", str(file), data_dir=service.data_dir).returncode == 0
    state = read_state(service.data_dir)
    assert state is not None
    with psycopg.connect(state["addresses"]["database_url"], autocommit=True) as owner:
        owner.execute("DROP POLICY owner ON users")
        try:
            refused = plaudit("restore", str(file), "--yes", data_dir=service.data_dir)
        finally:
            owner.execute("CREATE POLICY owner ON users TO CURRENT_USER USING (true) WITH CHECK (true)")
    assert refused.returncode == 1
    assert "does not see every row" in refused.stderr
