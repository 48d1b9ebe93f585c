"""Replays and refused claims of one user: beyond ten times what may be paid they do not come as far as the database."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any
from uuid import UUID, uuid4

import pytest
from flask import Flask
from flask.testing import FlaskClient
from sqlalchemy import text
from werkzeug.test import TestResponse

from analytics.scores import actions, catalog, ledger
from analytics.scores.catalog import Terms
from app.http.score_claims import ATTEMPTS_PER_PAYMENT
from tenants import db, waiting
from tenants import settings as tenant_settings
from tenants.db import tenant_tx, utcnow
from tests.analytics.scores.conftest import CLAIM, UPDATE, claim_of, token_for
from tests.app.server.served import over_http, served
from tests.conftest import redis_unavailable
from tests.people import Caller, client_of, user_of
from tests.service import eventually

PER_MINUTE = 3
ATTEMPTS = PER_MINUTE * ATTEMPTS_PER_PAYMENT
FUTURE = "2999-01-01T00:00:00Z"
Send = Callable[[Caller], TestResponse]


@pytest.fixture
def admin(client: FlaskClient, tenant: str) -> Caller:
    with tenant_tx(tenant) as tx:
        for name, points in {"post": 10, "answer": 100}.items():
            catalog.put(tx, name, Terms(points=points), now=utcnow())
        tenant_settings.change(tx, {"limits": {"score_updates_per_minute": PER_MINUTE}}, now=utcnow())
    return client_of(client, tenant)


@pytest.fixture
def member(admin: Caller, client: FlaskClient, tenant: str) -> Caller:
    return user_of(client, tenant)


@pytest.fixture
def colleague(admin: Caller, client: FlaskClient, tenant: str) -> Caller:
    return user_of(client, tenant)


@pytest.fixture
def url(app: Flask) -> Iterator[str]:
    with served(app) as address:
        yield address


def ways_to_attempt(admin: Caller, member: Caller) -> dict[str, Send]:
    """By the lane and by the route; paid, replayed and refused."""
    replayed, keyed, spent = claim_of(), claim_of(), {"action_token": token_for(admin, member.id)}
    return {
        "a replay": lambda who: who("POST", UPDATE, json=replayed),
        "a claim from the future": lambda who: who("POST", UPDATE, json=claim_of(timestamp=FUTURE)),
        "an unknown action": lambda who: who("POST", UPDATE, json=claim_of(actionType="fly")),
        "a claim with metadata": lambda who: who("POST", UPDATE, json=claim_of(metadata={"a": 1})),
        "a broken claim": lambda who: who("POST", UPDATE, json={}),
        "a key": lambda who: who("POST", UPDATE, json=keyed, headers={"Idempotency-Key": "one"}),
        "a token": lambda who: who("PATCH", CLAIM, json=spent),
    }


def is_above_attempts(answer: TestResponse) -> bool:
    return answer.status_code == 429 and answer.headers.get("RateLimit-Policy", "").startswith('"score-attempts"')


def use_up_attempts(member: Caller) -> int:
    """How many were answered otherwise before."""
    body, sent = claim_of(), 0
    while not is_above_attempts(member("POST", UPDATE, json=body)):
        sent += 1
        assert sent <= 10 * ATTEMPTS
    return sent


@pytest.mark.parametrize("is_redis_away", [False, True])
def test_a_flood_of_attempts_ends_before_the_database_and_a_colleague_is_paid(
    admin: Caller, member: Caller, colleague: Caller, tenant: str, url: str, is_redis_away: bool
) -> None:
    remote, other = over_http(member, url), over_http(colleague, url)
    ways = ways_to_attempt(admin, member)

    def send_all(times: int) -> list[TestResponse]:
        return list(threads.map(lambda send: send(remote), list(ways.values()) * times))

    def send_while_the_row_is_locked() -> list[TestResponse] | None:
        """None, and once more, if a minute has ended meanwhile: then one may attempt it, and waits for the row."""
        with tenant_tx(tenant, separate=True) as tx:
            assert ledger.lock_user(tx, UUID(member.id)) is not None
            answers = send_all(1)
            paid = other("POST", UPDATE, json=claim_of())
        assert (paid.status_code, paid.get_json()["delta"]) == (200, 10)
        return answers if all(map(is_above_attempts, answers)) else None

    with redis_unavailable() if is_redis_away else nullcontext(), ThreadPoolExecutor(8) as threads:
        began = time.monotonic()
        reached = [one for one in send_all(40) if not is_above_attempts(one)]
        freed = (time.monotonic() - began) * ATTEMPTS / 60
        assert PER_MINUTE <= len(reached) <= ATTEMPTS + 1 + freed
        refused = eventually(send_while_the_row_is_locked)
    for answer in refused:
        assert answer.get_json()["code"] == "rate_limited"
        assert 1 <= int(answer.headers["Retry-After"]) <= 120
        assert answer.headers["RateLimit-Policy"] == f'"score-attempts";q={ATTEMPTS};w=60'


def test_above_the_limit_neither_the_database_nor_redis_is_asked(admin: Caller, member: Caller) -> None:
    ways = ways_to_attempt(admin, member)

    def send_all() -> bool:
        """Whether all were refused: if a minute has ended meanwhile, one may attempt it."""
        use_up_attempts(member)
        waiting.forbid_in_this_thread()  # whatever would ask fails
        try:
            return all(is_above_attempts(send(member)) for send in ways.values())
        finally:
            waiting.allow_in_this_thread()

    eventually(send_all, within_s=20)


def test_what_the_lane_passes_on_is_counted_once(member: Caller) -> None:
    """A refused claim is begun by the lane, and answered by the route."""
    sent = [member("POST", UPDATE, json=claim_of(actionType="fly")) for _ in range(ATTEMPTS + 1)]
    assert [one.status_code for one in sent] == [422] * ATTEMPTS + [429]


def test_what_an_app_claims_for_the_user_is_not_the_users_attempt(admin: Caller, member: Caller, tenant: str) -> None:
    use_up_attempts(member)
    with tenant_tx(tenant) as tx:
        tx.execute(text("UPDATE users SET external_id = 'ada' WHERE id = :user"), {"user": member.id})
    batch = [{"type": "action", "user": "ada", "action_type": "post", "id": str(uuid4())}]
    assert admin("POST", "/api/v1/events", json={"events": batch}).get_json()["rejected"] == []


def test_of_many_claims_from_the_future_one_a_minute_is_flagged(
    admin: Caller, member: Caller, colleague: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    flagged: list[str] = []

    def flag(tx: db.Tx, claim: actions.ActionClaim, **more: Any) -> None:
        flagged.append(str(claim.user))
        flag_impossible_time(tx, claim, **more)

    flag_impossible_time = actions.flag_impossible_time
    monkeypatch.setattr(actions, "flag_impossible_time", flag)
    past = member("POST", UPDATE, json=claim_of(timestamp="2001-01-01T00:00:00Z"))
    assert (past.get_json()["code"], flagged) == ("impossible_time", [])
    for caller, headers in ((member, {}), (member, {"Idempotency-Key": "k"}), (member, {}), (colleague, {})):
        answer = caller("POST", UPDATE, json=claim_of(timestamp=FUTURE), headers=headers)
        assert answer.get_json()["code"] == "impossible_time"
    assert flagged == [member.id, colleague.id]
    flags = admin("GET", "/api/v1/integrity/flags").get_json()["items"]
    assert [flag["rule"] for flag in flags] == ["impossible_clock"] * 2
