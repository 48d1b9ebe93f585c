"""Writes of a route: committed at once or with the request, never twice, and only with a valid token."""

from collections.abc import Iterator
from contextlib import suppress

import pytest
from flask import Flask, request

from analytics.ingest import page_writes
from analytics.ingest.reasons import Result
from analytics.ingest.writes import EventKind, Item, Outcome, WriteRequest
from app.http.auth import WRITTEN, BadCredentials
from app.http.event_writes import write
from tenants.credentials import ClientToken
from tenants.db import tenant_tx, utcnow
from tenants.signing import BadToken
from tests.analytics.conftest import views_of


@pytest.fixture(autouse=True)
def in_a_request(app: Flask, tenant: str) -> Iterator[None]:
    with tenant_tx(tenant) as tx:
        page_writes.put(tx, "home", space="eng", title="Home", url="/home", now=utcnow())
    with app.test_request_context():
        yield


def view(tenant: str, *, token: ClientToken | None = None) -> WriteRequest:
    now = utcnow()
    return WriteRequest(tenant, [Item(EventKind.VIEW, "home", now)], now, token=token)


def test_a_write_is_committed_when_it_returns(tenant: str) -> None:
    assert [outcome.result for outcome in write(view(tenant))] == [Result.ACCEPTED]
    assert views_of(tenant) == 1


def test_in_an_idempotent_request_a_write_is_committed_or_rolled_back_with_it(tenant: str) -> None:
    with suppress(ZeroDivisionError), tenant_tx(tenant):
        assert write(view(tenant))[0].result is Result.ACCEPTED
        raise ZeroDivisionError
    assert views_of(tenant) == 0
    with tenant_tx(tenant):
        write(view(tenant))
    assert views_of(tenant) == 1


def test_what_the_fast_lane_wrote_is_not_written_again(tenant: str) -> None:
    written = view(tenant)
    written.outcomes = [Outcome(Result.UNKNOWN_PAGE)]
    request.environ[WRITTEN] = written
    assert write(view(tenant)) == written.outcomes
    assert views_of(tenant) == 0
    write(view(tenant))
    assert views_of(tenant) == 1, "only the first write of the request was done"


def test_what_failed_in_the_fast_lane_fails_in_the_route(tenant: str) -> None:
    for error, raised in ((ConnectionError(), ConnectionError), (BadToken(), BadCredentials)):
        written = view(tenant)
        written.error = error
        request.environ[WRITTEN] = written
        with pytest.raises(raised):
            write(view(tenant))
    assert views_of(tenant) == 0


def test_a_token_that_is_not_valid_writes_nothing(tenant: str) -> None:
    unknown = ClientToken(f"{tenant}.nobody", "jti")
    with pytest.raises(BadCredentials):
        write(view(tenant, token=unknown))
    with pytest.raises(BadCredentials), tenant_tx(tenant):
        write(view(tenant, token=unknown))
    assert views_of(tenant) == 0
