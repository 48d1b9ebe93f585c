"""Made-up keys, tickets and clients cost the network that sends them, and never the tenant that they name."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from secrets import token_hex
from typing import Any

import pytest
from flask.testing import FlaskClient
from sqlalchemy import text

from app.http.services import services_of
from tenants import credentials, group_tx, liveness, tickets, unproven
from tenants.credentials import ValidKey
from tenants.db import tenant_tx, utcnow
from tenants.errors import Limited
from tenants.opaque_tokens import is_ours
from tenants.shares import NOBODY, TenantShare
from tenants.signing import Signer
from tenants.throttle import TooMany
from tenants.tickets import BadTicket, Holder
from tests.beacons import ORIGIN
from tests.people import client_of
from tests.secrets_seen import SEEN
from tests.tenants.conftest import trusted_memory

__all__ = ["trusted_memory"]

SIGNER = Signer(issuer="https://a.example", secret_key="a secret of these tests' own, long enough")
ANOTHER = Signer(issuer="https://a.example", secret_key="the secret of another installation, long")


@pytest.fixture
def attacker() -> str:
    """A network that no other test has used up."""
    return f"attacker-{token_hex(4)}"


@pytest.fixture
def user_network() -> str:
    return f"user-{token_hex(4)}"


def create_key(tenant: str, signer: Signer = SIGNER) -> str:
    with tenant_tx(tenant) as tx:
        return credentials.create_key(tx, signer=signer, name="Wiki", origins=[ORIGIN], now=utcnow()).id


def create_old_key(tenant: str) -> str:
    """A key as earlier releases made them."""
    old = f"pk_{tenant}_{token_hex(12)}"
    with tenant_tx(tenant) as tx:
        tx.execute(
            text("UPDATE publishable_keys SET id = :old WHERE tenant_id = :tenant AND id = :new"),
            {"tenant": tenant, "old": old, "new": create_key(tenant)},
        )
    return old


def made_up(tenant: str) -> str:
    return f"pk_{tenant}_{token_hex(12)}-{token_hex(16)}"


def find(key: str, network: str) -> ValidKey | None:
    return credentials.find_sent_key(key, signer=SIGNER, network=network)


def flood(tenant: str, network: str) -> int:
    """How many made-up keys are looked up before the network has used up its limit."""
    for number in range(1000):
        try:
            assert find(made_up(tenant), network) is None
        except TooMany as refused:
            assert refused.retry_after_s is not None
            return number
    return 1000


@pytest.fixture
def off_the_share(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whatever would use the named tenant's share of connections fails."""
    with monkeypatch.context() as patch:
        for module in ("credentials", "tickets"):
            patch.setattr(f"tenants.{module}.tenant_tx", lambda *_: pytest.fail("on the tenant's share"))
        yield


def test_made_up_credentials_use_nothing_of_the_tenant_that_they_name(
    tenant: str, attacker: str, off_the_share: None
) -> None:
    assert find(made_up(tenant), attacker) is None
    assert find(f"pk_{tenant}_{token_hex(12)}", attacker) is None
    for ticket in (f"tkt_{tenant}_{token_hex(24)}_{token_hex(16)}", f"tkt_{tenant}_AAAAAAAA"):
        with pytest.raises(BadTicket):
            tickets.consume(ticket, signer=SIGNER, network=attacker, now=utcnow())
    assert credentials.find_client(f"{tenant}.{token_hex(8)}", network=attacker) is None


def test_a_network_has_a_minutes_worth_of_made_up_credentials(tenant: str, other_tenant: str, attacker: str) -> None:
    assert flood(tenant, attacker) == unproven.PER_NETWORK.amount
    for attempt in (
        lambda: find(made_up(other_tenant), attacker),
        lambda: tickets.consume(f"tkt_{tenant}_x_y", signer=SIGNER, network=attacker, now=utcnow()),
    ):
        with pytest.raises(TooMany):
            attempt()


@pytest.mark.parametrize("create", [create_old_key, lambda tenant: create_key(tenant, ANOTHER)])
def test_a_valid_key_without_a_right_mac_works_during_a_flood_and_once_known_from_everywhere(
    tenant: str, attacker: str, user_network: str, trusted_memory: None, create: Callable[[str], str]
) -> None:
    key = create(tenant)
    flood(tenant, attacker)
    with pytest.raises(TooMany):
        find(key, attacker)
    found = find(key, user_network)
    assert found is not None
    assert found.key_id == key
    assert find(key, attacker) == found
    liveness._answers.drop_all()
    assert find(key, attacker) == found, "also when it has to be read again"
    with tenant_tx(tenant) as tx:
        credentials.revoke_key(tx, key, now=utcnow())
    assert find(key, user_network) is None


def test_a_key_with_a_right_mac_is_never_throttled(tenant: str, attacker: str) -> None:
    key = create_key(tenant)
    assert credentials.KEY_ID.fullmatch(key), key
    flood(tenant, attacker)
    found = find(key, attacker)
    assert found is not None
    assert found.tenant_id == tenant


def test_nothing_is_remembered_of_made_up_credentials(tenant: str, trusted_memory: None) -> None:
    keys, clients = [made_up(tenant) for _ in range(20)], [f"{tenant}.{token_hex(8)}" for _ in range(20)]
    for key, client in zip(keys, clients, strict=True):
        find(key, f"network-{token_hex(4)}")
        credentials.find_client(client, network="network")
    names = {(tenant, f"key:{key}") for key in keys} | {(tenant, f"client:{client}") for client in clients}
    for kept in (liveness._answers._answers, unproven._found):
        assert not names & set(kept._values)


def test_a_ticket_of_before_this_release_is_used_once(tenant: str, user_network: str) -> None:
    holder = Holder(tenant, "key", "x")
    with tenant_tx(tenant) as tx:
        ticket, _ = tickets.issue(tx, holder, signer=ANOTHER, now=utcnow())
    SEEN.add(ticket)

    def consume() -> Holder:
        return tickets.consume(ticket, signer=SIGNER, network=user_network, now=utcnow())

    assert consume() == holder
    with pytest.raises(BadTicket):
        consume()


def test_few_are_looked_up_at_once(
    tenant: str, attacker: str, user_network: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    share = TenantShare(2, max_waiting=0)
    monkeypatch.setattr(unproven, "_at_once", share)
    with share.of(NOBODY, attacker):
        with share.of(NOBODY, attacker), pytest.raises(Limited, match="at once"):
            find(made_up(tenant), user_network)
        with pytest.raises(Limited, match="at once"):
            find(made_up(tenant), attacker)
        assert find(made_up(tenant), user_network) is None, "half is left to the network that was refused"


def test_memory_of_found_credentials_is_bounded_for_each_tenant(
    tenant: str, other_tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unproven, "MAX_FOUND_OF_TENANT", 1)
    keys = {key: of for of in (tenant, other_tenant) for key in (create_key(of, ANOTHER), create_key(of, ANOTHER))}
    for key in keys:
        assert find(key, f"network-{token_hex(4)}") is not None
    assert [(of, f"key:{key}") in unproven._found for key, of in keys.items()] == [False, True, False, True]


def test_over_http_a_flood_is_limited_and_a_valid_key_is_not(client: FlaskClient, tenant: str) -> None:
    origin = {"REMOTE_ADDR": f"2001:db8:{token_hex(2)}:{token_hex(2)}::1"}
    app = client_of(client, tenant)
    key = str(app("POST", "/api/v1/keys", json={"origins": [ORIGIN]}).get_json()["key"])
    assert is_ours(key, services_of(client.application).signer, separator="-")

    def read(key: str) -> Any:
        return client.get(
            "/api/v1/leaderboards?window=7d", headers={"X-Plaudit-Key": key, "Origin": ORIGIN}, environ_base=origin
        )

    statuses: list[int] = []
    while len(statuses) < 200 and 429 not in statuses:
        statuses.append(read(made_up(tenant)).status_code)
    assert set(statuses) == {401, 429}
    refused = read(made_up(tenant))
    assert (refused.status_code, refused.get_json()["code"]) == (429, "rate_limited")
    assert int(refused.headers["Retry-After"]) > 0
    assert read(key).status_code == 200


def test_of_many_who_send_an_old_key_at_once_few_look_it_up(
    tenant: str, user_network: str, trusted_memory: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, looked_up, read_one = create_old_key(tenant), list[str](), group_tx.read_one

    def slow_look_up(*call: Any) -> Any:
        looked_up.append(key)
        time.sleep(0.2)
        return read_one(*call)

    monkeypatch.setattr(group_tx, "read_one", slow_look_up)
    with ThreadPoolExecutor(20) as pool:
        found = list(pool.map(lambda number: find(key, f"{user_network}-{number}"), range(20)))
    assert None not in found
    assert len(looked_up) <= unproven.MAX_AT_ONCE
