"""Tickets: used once, within half a minute, without Redis too; and what their holder still sees."""

from datetime import datetime, timedelta
from typing import Literal

import pytest

from tenants import credentials, tickets
from tenants.db import tenant_tx, utcnow
from tenants.signing import Signer
from tenants.tickets import TICKET_TTL, BadTicket, Holder
from tests.secrets_seen import SEEN

NOW = utcnow()
SIGNER = Signer(issuer="https://a.example", secret_key="a secret of these tests' own, long enough")


def issue(holder: Holder) -> str:
    with tenant_tx(holder.tenant_id) as tx:
        ticket, expires_at = tickets.issue(tx, holder, signer=SIGNER, now=NOW)
    assert expires_at == NOW + TICKET_TTL
    SEEN.add(ticket)
    return ticket


def consume(ticket: str, *, now: datetime = NOW) -> Holder:
    return tickets.consume(ticket, signer=SIGNER, network="here", now=now)


def test_a_ticket_is_used_once_also_without_redis(tenant: str, no_redis: None) -> None:
    holder = Holder(tenant, "client", "x", proof="jti", until=5)
    ticket = issue(holder)
    assert consume(ticket) == holder
    with pytest.raises(BadTicket):
        consume(ticket)


def test_a_ticket_that_is_too_old_or_unknown_is_refused(tenant: str) -> None:
    ticket = issue(Holder(tenant, "key", "x"))
    with pytest.raises(BadTicket):
        consume(ticket, now=NOW + TICKET_TTL)
    for unknown in ("", "x", f"tkt_{tenant}_{'A' * 43}", ticket.replace("tkt_", "rt_"), "tkt_nobody-here_x"):
        with pytest.raises(BadTicket):
            consume(unknown)


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("user", {"session:proof", "tenant"}),
        ("client", {"client:id", "token:proof", "tenant"}),
        ("key", {"key:id", "tenant"}),
    ],
)
def test_a_holder_names_what_must_not_be_revoked(kind: Literal["user", "client", "key"], names: set[str]) -> None:
    holder = Holder("demo", kind, "id", proof="proof")
    assert holder.names() == names
    assert holder.subject == f"{kind}:id"


def test_a_holder_sees_what_the_credential_allows_while_it_is_valid(tenant: str) -> None:
    with tenant_tx(tenant) as tx:
        key = credentials.create_key(tx, signer=SIGNER, name="k", origins=["https://a.example"], now=utcnow()).id
        created = credentials.create_client(tx, name="c", scopes=["stats:read"], now=utcnow())
        SEEN.add(created.secret)
    soon = int((utcnow() + timedelta(minutes=5)).timestamp())
    client = created.client.id
    cases = {
        Holder(tenant, "key", key): True,
        Holder(tenant, "client", client, proof="jti", until=soon): False,
        Holder(tenant, "client", client, proof="jti", until=1): None,
        Holder(tenant, "client", f"{tenant}.0000000000000000", proof="jti"): None,
        Holder(tenant, "user", "id", proof="no session"): None,
    }
    assert {holder: holder.sees_public_only() for holder in cases} == cases
