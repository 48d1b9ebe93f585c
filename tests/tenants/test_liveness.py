"""What was revoked stays revoked, in whatever order it is announced; on the real Redis, and without it."""

import time
from collections.abc import Iterator
from secrets import token_hex
from uuid import UUID

import pytest
from flask.testing import FlaskClient
from redis import Redis

from app.settings import Settings
from tenants import liveness, sessions, users
from tenants import redis as tenants_redis
from tenants.db import tenant_tx, utcnow
from tenants.redis import key
from tenants.users import Role
from tests.people import user_of


@pytest.fixture
def redis(connected: None, settings: Settings) -> Iterator[Redis]:
    client = tenants_redis.make_client(settings.redis_url or "", timeout_s=5)
    yield client
    client.close()


@pytest.fixture
def name() -> str:
    return f"session:{token_hex(8)}"


@pytest.fixture
def away(settings: Settings, connected: None) -> Iterator[None]:
    """Redis is not to be reached; afterwards it is again."""
    real = settings.redis_url or ""
    tenants_redis.configure(boards_url="redis://127.0.0.1:1/0", queue_url=real)
    yield
    liveness._unwritten.clear()
    tenants_redis.configure(boards_url=real, queue_url=real)


def back(settings: Settings) -> None:
    url = settings.redis_url or ""
    tenants_redis.configure(boards_url=url, queue_url=url)


def answer(tenant: str, name: str, says: str | None) -> str | None:
    return liveness.look_up(tenant, [name], lambda: says)


def test_a_changed_answer_is_never_written_over_a_revocation(tenant: str, name: str, redis: Redis) -> None:
    assert answer(tenant, name, "member") == "member"
    liveness.store_answers(tenant, {name: "admin"})
    assert answer(tenant, name, "nobody is asked") == "admin"
    assert 0 < redis.ttl(key("cred", tenant, name)) <= liveness.ANSWER_TTL_S
    liveness.announce_revoked(tenant, [name])
    liveness.store_answers(tenant, {name: "admin"})
    assert answer(tenant, name, "admin") is None
    assert redis.ttl(key("cred", tenant, name)) > liveness.ANSWER_TTL_S


def test_an_answer_that_was_under_way_during_a_revocation_is_not_kept(tenant: str, name: str) -> None:
    def ask() -> str:
        liveness.announce_revoked(tenant, [name])  # meanwhile, and after PostgreSQL was asked
        liveness.store_answers(tenant, {name: "admin"})
        return "member"

    assert liveness.look_up(tenant, [name], ask) == "member"
    assert answer(tenant, name, "member") is None


def test_a_role_that_is_announced_after_the_session_ended_does_not_bring_it_back(
    client: FlaskClient, tenant: str
) -> None:
    user = user_of(client, tenant)
    with tenant_tx(tenant) as tx:
        _, announce_role = sessions.change_user(tx, users.get(tx, UUID(user.id)), {"role": Role.ADMIN}, now=utcnow())
    assert user("POST", "/api/v1/auth/logout").status_code == 204
    announce_role()
    assert user("GET", "/api/v1/me").status_code == 401


def test_a_changed_answer_that_waits_for_redis_never_replaces_a_revocation_that_waits(
    tenant: str, name: str, settings: Settings, away: None
) -> None:
    liveness.announce_revoked(tenant, [name])
    liveness.store_answers(tenant, {name: "admin"})
    back(settings)
    assert answer(tenant, name, "admin") is None


def test_a_revocation_replaces_a_changed_answer_that_waits(
    tenant: str, name: str, settings: Settings, away: None
) -> None:
    liveness.store_answers(tenant, {name: "admin"})
    liveness.announce_revoked(tenant, [name])
    back(settings)
    assert answer(tenant, name, "admin") is None


def test_a_changed_answer_that_waited_is_not_written_over_what_another_process_revoked(
    tenant: str, name: str, settings: Settings, away: None, redis: Redis
) -> None:
    liveness.store_answers(tenant, {name: "admin"})
    redis.set(key("cred", tenant, name), b"-", ex=liveness.TOMBSTONE_TTL_S)
    back(settings)
    assert answer(tenant, name, "admin") is None


def test_a_changed_answer_that_waited_too_long_is_never_written(
    tenant: str, name: str, settings: Settings, away: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    liveness.store_answers(tenant, {name: "admin"})
    real = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: real() + liveness.ANSWER_TTL_S + 1)
    back(settings)
    assert answer(tenant, name, "member") == "member", "another process may have changed it since"
    assert liveness._unwritten == {}


def test_a_tenant_that_is_made_anew_is_not_revoked_by_what_waited(
    tenant: str, name: str, settings: Settings, away: None
) -> None:
    liveness.announce_revoked(tenant, [liveness.TENANT])
    liveness.forget(tenant, [liveness.TENANT])
    back(settings)
    assert answer(tenant, name, "member") == "member"
