"""Writing views and likes: each event id once, everything of a request or nothing, an outcome for each item (P2)."""

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

from flask.testing import FlaskClient
from sqlalchemy import text

from analytics.ingest import writes
from analytics.ingest.group_commit import GroupCommit
from analytics.ingest.reasons import Result
from analytics.ingest.writes import EventKind, Item, Outcome, WriteRequest, commit_together
from tenants import credentials, users
from tenants.credentials import ClientToken
from tenants.db import owner_tx, tenant_tx, utcnow
from tenants.signing import BadToken
from tests.analytics.conftest import likes_of, make_page, put_page, views_of, write_events
from tests.analytics.ingest.conftest import send, view
from tests.people import Caller, client_of
from tests.service import eventually


def test_the_same_id_twice_in_one_batch_counts_once(sender: Caller, tenant: str, page: str) -> None:
    answer = send(sender, [view(page, id="same"), view(page, id="same"), view(page)])
    assert (answer["accepted"], answer["duplicates"]) == (2, 1)
    assert views_of(tenant) == 2


def test_a_refused_event_may_be_sent_again_when_its_page_is_there(sender: Caller, tenant: str) -> None:
    event = view("later", id="early")
    assert send(sender, [event])["rejected"][0]["code"] == "unknown_page"
    make_page(sender, "later")
    assert send(sender, [event])["accepted"] == 1


def test_an_id_counts_once_also_across_types_and_routes(sender: Caller, tenant: str, page: str) -> None:
    assert send(sender, [{"type": "like", "page": page, "user": "u", "id": "one"}])["accepted"] == 1
    assert send(sender, [{"type": "unlike", "page": page, "user": "u", "id": "one"}])["duplicates"] == 1
    assert sender("POST", f"/api/v1/pages/{page}/views", json={"id": "one"}).get_json()["duplicates"] == 1
    assert likes_of(tenant, page) == (1, 1)


def test_another_tenant_has_ids_of_its_own(client: FlaskClient, sender: Caller, other_tenant: str, page: str) -> None:
    other = client_of(client, other_tenant, "pages:write", "events:write")
    make_page(other, page)
    assert send(sender, [view(page, id="shared")])["accepted"] == 1
    assert send(other, [view(page, id="shared")])["accepted"] == 1


def test_a_revoked_token_writes_nothing(client: FlaskClient, sender: Caller, tenant: str, page: str) -> None:
    admin = client_of(client, tenant)
    assert sender("POST", f"/api/v1/pages/{page}/views").status_code == 202
    admin("DELETE", f"/api/v1/clients/{sender.id}")
    for method, path, body in (
        ("POST", f"/api/v1/pages/{page}/views", {}),
        ("POST", "/api/v1/events", {"events": [view(page)]}),
        ("PUT", f"/api/v1/pages/{page}/likes/u-1", None),
    ):
        answer = sender(method, path, json=body)
        assert answer.status_code == 401, path
        assert "invalid_token" in answer.headers["WWW-Authenticate"]
    assert views_of(tenant) == 1


def test_a_like_of_a_user_who_is_erased_meanwhile_is_rejected_and_can_be_sent_again(
    sender: Caller, tenant: str, page: str
) -> None:
    like = {"type": "like", "page": page, "user": "u", "id": "once"}
    with tenant_tx(tenant) as tx:
        users.ensure_external(tx, "u", now=utcnow())
    with owner_tx() as tx:
        tx.execute(text("UPDATE users SET erased_at = now() WHERE tenant_id = :t"), {"t": tenant})
    answer = send(sender, [like, view(page)])
    assert (answer["accepted"], [(r["index"], r["code"]) for r in answer["rejected"]]) == (1, [(0, "invalid")])
    with owner_tx() as tx:
        tx.execute(text("UPDATE users SET erased_at = NULL WHERE tenant_id = :t"), {"t": tenant})
    assert sender("GET", "/api/v1/ingest/rejections").get_json()["reasons"] == {"invalid": 1}
    assert send(sender, [like])["accepted"] == 1
    assert likes_of(tenant, page) == (1, 1)


def test_every_item_has_the_outcome_of_its_place(tenant: str) -> None:
    put_page(tenant, "home")
    now, key = utcnow(), uuid4()
    outcomes = write_events(
        tenant,
        Item(EventKind.VIEW, "home", now, event_key=key),
        Item(EventKind.VIEW, "nowhere", now),
        Item(EventKind.LIKE, "home", now, user="ada"),
        Item(EventKind.VIEW, "home", now, event_key=key),
        Item(EventKind.LIKE, "home", now, user="bob"),
        Item(EventKind.LIKE, "home", now, user=uuid4()),
        Item(EventKind.UNLIKE, "home", now, user="ada"),
    )
    assert outcomes == [
        Outcome(Result.ACCEPTED),
        Outcome(Result.UNKNOWN_PAGE),
        Outcome(Result.ACCEPTED, likes=1),
        Outcome(Result.DUPLICATE),
        Outcome(Result.ACCEPTED, likes=2),
        Outcome(Result.UNKNOWN_USER),
        Outcome(Result.ACCEPTED, likes=1),
    ]
    assert (views_of(tenant), likes_of(tenant, "home")) == (1, (1, 1))


def test_requests_of_several_tenants_are_written_together_without_those_of_a_revoked_token(
    tenant: str, other_tenant: str
) -> None:
    def request(tenant_id: str, *, client: str | None = None) -> WriteRequest:
        token = ClientToken(client, f"token of {client}") if client else None
        return WriteRequest(tenant_id, [Item(EventKind.VIEW, "home", utcnow())], utcnow(), token=token)

    for tenant_id in (tenant, other_tenant):
        put_page(tenant_id, "home")
    with tenant_tx(tenant) as tx:
        client_id = credentials.create_client(tx, name="x", scopes=["events:write"], now=utcnow()).client.id
        revoked_id = credentials.create_client(tx, name="x", scopes=["events:write"], now=utcnow()).client.id
        credentials.revoke_client(tx, revoked_id, now=utcnow())
    revoked, neighbour = request(tenant, client=revoked_id), request(tenant, client=client_id)
    other = request(other_tenant)
    assert writes.commit_together([revoked, neighbour, other], shared=True) == [neighbour]
    assert isinstance(revoked.error, BadToken)
    assert (views_of(tenant), views_of(other_tenant)) == (0, 1), "nothing of that tenant yet"
    assert writes.commit_together([neighbour], shared=True) == []
    assert (neighbour.outcomes, views_of(tenant)) == ([Outcome(Result.ACCEPTED)], 1)


def test_a_request_that_cannot_be_written_fails_alone(tenant: str, other_tenant: str) -> None:
    """Whatever a check has missed: another tenant's request in the same commit is written, once."""
    put_page(tenant, "home")
    put_page(other_tenant, "home")
    is_full = threading.Event()

    def commit(requests: Sequence[WriteRequest], shared: bool) -> list[WriteRequest]:
        """The first waits until the other two are in the queue, so that these two share the next commit."""
        if not is_full.is_set():
            eventually(lambda: group.items_in_flight == 3)
            is_full.set()
        return commit_together(requests, shared)

    def write(tenant_id: str, page: str) -> str:
        request = WriteRequest(tenant_id, [Item(EventKind.VIEW, page, utcnow())], utcnow())
        try:
            return group.write(request)[0].result.value
        except Exception as error:  # noqa: BLE001  what the caller gets
            return type(error).__name__

    group = GroupCommit(commit=commit)
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(write, other_tenant, "home")
        eventually(lambda: group.items_in_flight == 1)
        bad, good = pool.submit(write, tenant, "a\x00b"), pool.submit(write, other_tenant, "home")
        assert (first.result(30), good.result(30)) == ("accepted", "accepted")
        assert bad.result(30) != "accepted"
    assert views_of(other_tenant) == 2
