"""Who may do what: the table of rights, publishable keys and their origins, operators."""

import pytest
from flask.testing import FlaskClient

from app.settings import Settings
from tests.analytics.conftest import views_of
from tests.app.conftest import with_settings
from tests.attacks.conftest import admin, key
from tests.beacons import send
from tests.people import Caller, client_of

__all__ = ["admin", "key"]


@pytest.mark.parametrize(
    "forwarded", ["", "\xff, 8.8.8.8", "junk", "1.2.3.4:5678", "[2001:db8::1]:80", "fe80::1%eth0", ","]
)
def test_a_garbled_forwarded_address_never_passes_for_the_proxy(settings: Settings, forwarded: str) -> None:
    for hops in (0, 1, 2):
        answer = with_settings(settings, proxy_hops=hops).get("/metrics", headers={"X-Forwarded-For": forwarded})
        assert answer.status_code == 403, (hops, forwarded)


def test_too_little_scope_is_403_and_says_which(client: FlaskClient, tenant: str) -> None:
    answer = client_of(client, tenant, "stats:read")("GET", "/api/v1/clients")
    assert answer.status_code == 403
    assert answer.get_json()["code"] == "insufficient_scope"
    assert 'error="insufficient_scope", scope="admin"' in answer.headers["WWW-Authenticate"]


@pytest.mark.parametrize(
    "origin", [None, "null", "https://evil.example", "http://wiki.example", "https://wiki.example.evil"]
)
def test_only_from_an_allowed_origin(
    client: FlaskClient, admin: Caller, key: str, tenant: str, origin: str | None
) -> None:
    answer = send(client, key, headers={"Origin": origin})
    assert (answer.status_code, answer.get_json()["code"]) == (403, "origin_not_allowed")
    assert views_of(tenant) == 0


def test_the_tenants_own_origins_count_for_every_key(client: FlaskClient, admin: Caller, key: str) -> None:
    admin("PATCH", "/api/v1/settings", json={"allowed_origins": ["https://docs.example"]})
    assert send(client, key, headers={"Origin": "https://docs.example"}).status_code == 202


@pytest.mark.parametrize("key", ["", "pk_", "pk_nobody_AAAAAAAAAAAA", "pk_../x_AAAAAAAAA", "sk_abc", "x" * 500])
def test_a_wrong_key_is_401(client: FlaskClient, connected: None, key: str) -> None:
    answer = send(client, key)
    assert answer.status_code == 401
