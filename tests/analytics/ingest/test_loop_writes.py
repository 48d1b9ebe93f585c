"""Claims that are paid on an event loop: as threads pay them, or left to threads with nothing written."""

import asyncio
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from flask.testing import FlaskClient
from sqlalchemy.exc import DBAPIError

from analytics.boards import projection
from analytics.boards.ranks import RankQuestion
from analytics.ingest.loop_writes import commit_claims_on_loop
from analytics.ingest.writes import Unwritable, WriteRequest
from analytics.scores.actions import ActionClaim, Verification
from tenants import pipelines
from tenants import settings as tenant_settings
from tenants.db import tenant_tx, utcnow
from tenants.loop_connection import LoopConnection
from tenants.pipelines import Statement
from tests.analytics.scores.test_payments import change_settings, claim, ledger_of, pay, put, shown
from tests.loops import run
from tests.people import user_of

Ranks = Sequence[Sequence[int | None] | None]


@pytest.fixture
def user(client: FlaskClient, tenant: str) -> UUID:
    return UUID(user_of(client, tenant).id)


@pytest.fixture
def other(client: FlaskClient, tenant: str) -> UUID:
    return UUID(user_of(client, tenant).id)


def request(tenant: str, claimed: ActionClaim) -> WriteRequest:
    """As the fast lane makes it: a user's own claim."""
    own = replace(claimed, verification=Verification.SESSION)
    with tenant_tx(tenant) as tx:
        return WriteRequest(tenant, [], utcnow(), claims=[own], settings=tenant_settings.read(tx)[0])


async def first_ranks(questions: Sequence[RankQuestion]) -> Ranks:
    return [[7] * len(question.asked) for question in questions]


async def no_board(questions: Sequence[RankQuestion]) -> Ranks:
    return [None] * len(questions)


def commit(*requests: WriteRequest, ranks: object = first_ranks) -> list[WriteRequest]:
    """Returns those that are left."""

    async def write() -> list[WriteRequest]:
        connection = LoopConnection(asyncio.get_running_loop())
        return await commit_claims_on_loop(requests, connection, ranks)  # type: ignore[arg-type]

    return run(write())


def outcomes(*requests: WriteRequest) -> list[str | int]:
    return [shown(payment) for one in requests for payment in one.payments]


def test_claims_of_several_tenants_are_paid_in_one_commit(
    client: FlaskClient, tenant: str, other_tenant: str, user: UUID
) -> None:
    stranger = UUID(user_of(client, other_tenant).id)
    for tenant_id in (tenant, other_tenant):
        put(tenant_id)
    again = claim(user, "s:1")
    requests = [
        request(tenant, again),
        request(tenant, claim(user)),
        request(other_tenant, claim(stranger)),
        request(tenant, again),
        request(tenant, claim(user, action="unknown")),
    ]
    assert commit(*requests) == []
    assert outcomes(*requests) == [10, 20, 10, "replay", "unknown_action"]
    assert [getattr(one.payments[0], "rank", None) for one in requests[:3]] == [7, 7, 7]
    assert ledger_of(tenant) == [(0, 10, 10), (10, 10, 20)]
    replayed = request(tenant, again)
    assert commit(replayed, ranks=no_board) == [], "a replay asks for no rank"
    assert outcomes(replayed) == ["replay"]


def test_a_suspicious_claim_is_left_and_the_others_are_paid(tenant: str, user: UUID, other: UUID) -> None:
    put(tenant)
    change_settings(tenant, integrity={"points_per_hour": 15})
    first, second, third = request(tenant, claim(user)), request(tenant, claim(user)), request(tenant, claim(other))
    assert commit(first, second, third) == [second], "its flag needs a transaction of a thread"
    assert outcomes(first, second, third) == [10, 10]
    assert ledger_of(tenant) == [(0, 10, 10), (0, 10, 10)]
    assert pay(tenant, second.claims[0]) == [20]


def test_without_the_board_all_of_a_tenant_is_left(tenant: str, user: UUID) -> None:
    put(tenant)
    one = request(tenant, claim(user))
    assert commit(one, ranks=no_board) == [one]
    assert (one.payments, ledger_of(tenant)) == ([], [])
    assert pay(tenant, *one.claims) == [10]


def test_a_source_that_is_paid_to_another_user_meanwhile_is_left(tenant: str, user: UUID, other: UUID) -> None:
    put(tenant)
    one = request(tenant, claim(user, "s:1"))

    async def pay_another(questions: Sequence[RankQuestion]) -> Ranks:
        await asyncio.get_running_loop().run_in_executor(None, pay, tenant, claim(other, "s:1"))
        return await first_ranks(questions)

    assert commit(one, ranks=pay_another) == [one]
    assert ledger_of(tenant) == [(0, 10, 10)]


def test_what_fails_in_between_writes_nothing_and_the_connection_is_used_again(tenant: str, user: UUID) -> None:
    put(tenant)
    one = request(tenant, claim(user))

    async def fail(_asked: object) -> Ranks:
        raise ZeroDivisionError

    async def test() -> None:
        connection = LoopConnection(asyncio.get_running_loop())
        with pytest.raises(Unwritable):
            await commit_claims_on_loop([one], connection, fail)
        bad = request(tenant, claim(user, "a\0b"))
        with pytest.raises(DBAPIError):
            await commit_claims_on_loop([bad], connection, first_ranks)
        assert await commit_claims_on_loop([one], connection, first_ranks) == []

    run(test())
    assert ledger_of(tenant) == [(0, 10, 10)]


def test_claims_take_two_round_trips_however_many_they_are(
    tenant: str, user: UUID, other: UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tenant)
    sent: list[tuple[Any, list[str]]] = []
    exchange = pipelines.exchange

    def record(driver: Any, statements: Sequence[Statement]) -> Any:
        ours = re.compile(r"read_claim_facts|read_pending_users|record_payments")
        sent.append((driver, [name for one in statements for name in ours.findall(one.sql.decode())]))
        return exchange(driver, statements)

    monkeypatch.setattr(pipelines, "exchange", record)
    assert commit(*(request(tenant, claim(one)) for one in (user, other, user))) == []
    connection = next(driver for driver, names in sent if "record_payments" in names)
    # Of ours only: opening the connection sends something too, in a process where nothing was open yet.
    trips = [names for driver, names in sent if driver is connection and names]
    assert trips == [["read_claim_facts", "read_pending_users"], ["record_payments"]]


def test_the_boards_follow(tenant: str, user: UUID) -> None:
    put(tenant)
    commit(request(tenant, claim(user)))
    assert projection.project_all(tenant, now=utcnow).users == 1
