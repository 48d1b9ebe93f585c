"""The beacon's wire format, and its limits."""

from typing import Any

import pytest

from analytics.ingest import beacons
from analytics.ingest.beacons import BeaconLimits
from analytics.ingest.writes import EventKind
from tenants.errors import Invalid
from tenants.settings import Limits
from tenants.throttle import TooMany

URL = "https://wiki.example/a"


def test_a_page_is_looked_for_at_its_address_and_then_at_its_canonical_one() -> None:
    assert beacons.read({"url": URL}).urls == [URL]
    assert beacons.read({"url": URL, "canonical": "https://wiki.example/b"}).urls == [URL, "https://wiki.example/b"]
    assert beacons.read({"url": URL, "canonical": "https://wiki.example/" + "b" * 3000}).urls == [URL]
    assert beacons.read({"page": "a"}).kind is EventKind.VIEW


@pytest.mark.parametrize(
    ("sent", "field"),
    [
        (["page"], "body"),
        ({}, "body"),
        ({"page": "a", "url": URL}, "body"),
        ({"page": "a", "surplus": 1}, "body"),
        ({"page": "a", "type": "share"}, "type"),
        ({"page": "a", "type": "like"}, "user_signature"),
        ({"page": "a", "type": "unlike", "user": "ada"}, "user_signature"),
        ({"page": "a", "user": "ada lovelace"}, "user"),
    ],
)
def test_what_is_wrong_is_named(sent: Any, field: str) -> None:
    with pytest.raises(Invalid) as refusal:
        beacons.read(sent)
    assert field in (refusal.value.errors or {})


@pytest.mark.parametrize("redis", ["redis", "no redis"])
def test_accepted_and_refused_beacons_have_limits_of_their_own(
    tenant: str, redis: str, request: pytest.FixtureRequest
) -> None:
    if redis == "no redis":
        request.getfixturevalue("no_redis")
    limits = Limits(beacons_per_minute=2, visitor_beacons_per_minute=1)
    ada, bob = (BeaconLimits(tenant, "10.0.0.1", visitor, limits) for visitor in ("ada", "bob"))
    elsewhere = BeaconLimits(tenant, "10.0.0.2", "eve", limits)
    for _ in range(5):
        ada.check()
    ada.accepted()
    with pytest.raises(TooMany, match="visitor"):
        ada.check()
    bob.check()
    bob.refused()
    bob.check()
    bob.refused()
    with pytest.raises(TooMany, match="refused"):
        bob.check()
    elsewhere.check()
    elsewhere.accepted()
    BeaconLimits(tenant, "10.0.0.2", "mallory", limits).accepted()
    with pytest.raises(TooMany, match="this address"):
        BeaconLimits(tenant, "10.0.0.2", "trent", limits).check()
