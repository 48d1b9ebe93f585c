"""Long answers: how many at once, in which pieces, and how they end. (Stalled readers: tests/attacks.)"""

import time
from typing import Any

import pytest
from flask.testing import FlaskClient
from sqlalchemy import text
from werkzeug.test import TestResponse

from analytics.boards import reading
from app.http import exports
from app.http.exports import (
    MAX_EXPORTS,
    MAX_EXPORTS_FOR_STRANGERS,
    MAX_EXPORTS_PER_TENANT,
    Export,
    Exports,
    TooManyExports,
)
from tenants import shares
from tenants.db import owner_tx, utcnow
from tenants.open_counts import OpenCounts
from tests.people import Caller, client_of, user_of
from tests.tenants.test_shares import Clock

EXPORT = "/api/v1/leaderboards/export.csv?scope=tenant&window=all&metric=views"


def fill(tenant: str, pages: int = 3_000) -> None:
    """A board with rows as long as they may be: no Redis has it, so it is read from PostgreSQL."""
    with owner_tx() as tx:
        tx.execute(
            text("""
                WITH made AS (
                    INSERT INTO pages (tenant_id, external_id, space_key, title, url, created_at, updated_at)
                    SELECT :t, 'p' || n, 'eng', repeat('t', 500), 'https://w.example/' || repeat('u', 2000), :now, :now
                    FROM generate_series(1, :pages) n RETURNING id)
                INSERT INTO page_stats (tenant_id, page_id, space_key, is_public, is_shared, page_updated_at,
                    computed_at, likes_1d, likes_7d, likes_30d, likes_all, views_1d, views_7d, views_30d, views_all,
                    score_1d, score_7d, score_30d, score_all)
                SELECT :t, id, 'eng', false, false, :now, :now, 0, 0, 0, 0, 1, 1, 1, id, 0, 0, 0, 0 FROM made
            """),
            {"t": tenant, "pages": pages, "now": utcnow()},
        )


def test_only_so_many_exports_run_at_once(client: FlaskClient, tenant: str, other_tenant: str) -> None:
    fill(tenant, 10)
    one, two = client_of(client, tenant), client_of(client, other_tenant)
    unread = [one("GET", EXPORT, buffered=False) for _ in range(2)]
    refused = one("GET", EXPORT)
    assert (refused.status_code, refused.get_json()["code"]) == (429, "too_many_exports")
    assert int(refused.headers["Retry-After"]) > 0
    unread += [two("GET", EXPORT, buffered=False) for _ in range(2)]
    assert [answer.status_code for answer in unread] == [200] * 4
    third = client_of(client, tenant)
    unread[0].close()
    assert third("GET", EXPORT).text.count("\n") == 11, "a place that was given back is free"
    for answer in unread[1:]:
        answer.close()
    for _ in range(5):
        assert one("HEAD", EXPORT).status_code == 200
    with pytest.MonkeyPatch.context() as broken:
        broken.setattr(reading, "read", lambda *_args, **_kwargs: 1 / 0)
        assert [one("GET", EXPORT).status_code for _ in range(5)] == [500] * 5
    assert one("GET", EXPORT).status_code == 200, "neither HEAD nor an error keeps a place"


def test_who_is_anonymous_takes_no_place_of_the_tenants_own_and_one_for_each_network(
    client: FlaskClient, tenant: str
) -> None:
    own = client_of(client, tenant)
    key = own("POST", "/api/v1/keys", json={"origins": ["https://a.example"]}).get_json()["key"]

    def anonymous(address: str) -> TestResponse:
        path = f"/api/v1/leaderboards/export.csv?scope=public&key={key}"
        return client.get(path, environ_base={"REMOTE_ADDR": address}, buffered=False)

    unread = [anonymous("192.0.2.1"), anonymous("192.0.2.2"), anonymous("2001:db8::1")]
    assert [answer.status_code for answer in unread] == [200] * 3
    assert [anonymous(address).status_code for address in ("192.0.2.1", "2001:db8::2")] == [429, 429]
    unread += [own("GET", EXPORT, buffered=False) for _ in range(2)]
    assert [answer.status_code for answer in unread[3:]] == [200] * 2
    for answer in unread:
        answer.close()
    assert anonymous("192.0.2.1").status_code == 200


def test_a_caller_above_half_is_refused_after_another_caller_of_the_tenant_was(
    client: FlaskClient, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tenant, 10)
    busy, colleague = client_of(client, tenant), client_of(client, tenant)

    def begin(caller: Caller) -> TestResponse:
        return caller("GET", EXPORT, buffered=False)

    unread = [begin(busy), begin(busy)]
    assert [answer.status_code for answer in unread] == [200, 200], "all of the tenant's, while nobody else wants one"
    assert begin(colleague).status_code == 429
    unread.pop().close()
    assert begin(busy).status_code == 429, "what became free is for the one that was refused"
    unread.append(begin(colleague))
    assert unread[-1].status_code == 200
    for answer in unread:
        answer.close()
    clock = Clock()
    clock.now = time.monotonic() + exports.CONTENDED_FOR_S + 1
    monkeypatch.setattr(shares, "time", clock)
    unread = [begin(busy), begin(busy)]
    assert [answer.status_code for answer in unread] == [200, 200]
    for answer in unread:
        answer.close()


def test_an_export_of_a_user_is_one_of_those_at_once(client: FlaskClient, tenant: str) -> None:
    admin, user = client_of(client, tenant), user_of(client, tenant)
    path = f"/api/v1/users/{user.id}/export"
    unread = [admin("GET", EXPORT, buffered=False) for _ in range(2)]
    refused = admin("GET", path)
    assert (refused.status_code, refused.get_json()["code"]) == (429, "too_many_exports")
    for answer in unread:
        answer.close()
    for _ in range(3):
        assert admin("GET", f"/api/v1/users/{tenant}/export").status_code == 404
    assert admin("GET", path).get_json()["profile"]["id"] == user.id


def test_an_export_is_sent_in_small_pieces(client: FlaskClient, tenant: str) -> None:
    fill(tenant, 1_200)
    answer = client_of(client, tenant)("GET", EXPORT, buffered=False)
    pieces = list(answer.iter_encoded())
    assert max(map(len, pieces)) <= 64 * 1024
    assert b"".join(pieces).count(b"\n") == 1_201


def test_an_export_that_fails_half_way_says_so_at_its_end(
    client: FlaskClient, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tenant, 1_200)
    caller, real, asked = client_of(client, tenant), reading.read, []

    def fail_later(*args: Any, **kwargs: Any) -> Any:
        asked.append(kwargs)
        if len(asked) > 1:
            raise ConnectionError
        return real(*args, **kwargs)

    monkeypatch.setattr(reading, "read", fail_later)
    for _ in range(4):
        asked.clear()
        assert caller("GET", EXPORT).text.splitlines()[-1].startswith("# incomplete")


def test_an_export_that_takes_too_long_ends_and_says_so(connected: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exports, "MAX_EXPORT_S", -1.0)
    pieces = list(Exports().begin("wiki", lambda: iter([b"rank,page\r\n"])))
    assert [piece.strip().startswith(b"# incomplete: stopped") for piece in pieces] == [True]


def test_a_tenants_exports_in_other_processes_count_too(tenant: str) -> None:
    other, group = OpenCounts("exports"), (tenant, "")
    assert [other.open({group: MAX_EXPORTS_PER_TENANT}) for _ in range(2)] == [None, None]
    for process in (other, exports._everywhere):
        process.beat()
    with pytest.raises(TooManyExports):
        Exports().begin(tenant, lambda: iter(()))
    other.close([group])
    other.beat()
    Exports().begin(tenant, lambda: iter(())).close()
    other.close([group])


def test_strangers_together_leave_slots_for_the_tenants_own(connected: None) -> None:
    running = Exports()

    def begin(tenant: str, stranger: str | None = None) -> Export:
        return running.begin(tenant, lambda: iter(()), stranger=stranger)

    open_ones = [begin("wiki", f"192.0.2.{number}") for number in range(MAX_EXPORTS_FOR_STRANGERS)]
    with pytest.raises(TooManyExports):
        begin("another", "192.0.2.99")
    open_ones += [begin(f"tenant-{number}") for number in range(MAX_EXPORTS - MAX_EXPORTS_FOR_STRANGERS)]
    with pytest.raises(TooManyExports):
        begin("one-too-many")
    for _ in range(2):
        open_ones[0].close()
    begin("another", "192.0.2.99").close()
    assert len(open_ones) == MAX_EXPORTS
