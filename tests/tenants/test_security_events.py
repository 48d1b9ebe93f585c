"""Security events: a closed set, documented for who ships logs, with as much of an address as the operator says."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tenants import logs, security_events
from tenants.security_events import SecurityEvent, shown_address
from tests.service import ROOT

Logged = Callable[[], list[dict[str, Any]]]


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    yield
    security_events.show_addresses("cut")
    logs.begin(request_id="none")


def test_an_address_is_cut_to_its_network_unless_the_operator_decides_otherwise() -> None:
    assert shown_address("203.0.113.9") == "203.0.113.0/24"
    assert shown_address("2001:db8:1:2:3::4") == "2001:db8:1::/48"
    assert shown_address(None) is None, "a header that is not an address"
    security_events.show_addresses("whole")
    assert shown_address("203.0.113.9") == "203.0.113.9"
    security_events.show_addresses("none")
    assert shown_address("203.0.113.9") is None


def test_a_line_has_who_where_and_from_which_network(logged: Logged) -> None:
    logs.begin(request_id="r1", address=lambda: "203.0.113.9")
    logs.bind(tenant_id="acme", user_id="u1")
    logs.audit(SecurityEvent.KEY_REVOKED, key="abc")
    logs.begin(request_id="r2")
    logs.audit(SecurityEvent.KEY_REVOKED, key="def")
    first, second = logged()
    assert (first["requestId"], first["tenantId"], first["userId"]) == ("r1", "acme", "u1")
    assert (first["action"], first["level"]) == ("audit.key.revoked", "info")
    assert first["data"] == {"key": "abc", "address": "203.0.113.0/24"}
    assert second["data"] == {"key": "def"}, "another request's, without an address"


def test_every_event_is_documented_for_those_who_ship_logs() -> None:
    document = (ROOT / "docs" / "operating.md").read_text()
    section = document.partition("### Security events")[2].partition("\n## ")[0]
    rows = [
        name for row in re.findall(r"^\|([^|]+)\|", section, re.MULTILINE) for name in re.findall(r"`([a-z_.]+)`", row)
    ]
    assert sorted(rows) == sorted(event.value for event in SecurityEvent)
