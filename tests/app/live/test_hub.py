"""The Hub by itself: which frames a follower is sent, in whatever order messages arrive."""

import threading

import orjson
import pytest
from prometheus_client import REGISTRY

from analytics.boards.names import Board
from analytics.metrics import LIKES
from analytics.windows import Window
from app.http.auth import Reader
from app.live.follower import Followed, Follower
from app.live.hub import ALL, NO_LONGER_VALID, RESTARTING, TRY_AGAIN_LATER, Hub, TooManyConnections
from tenants import liveness
from tenants import settings as tenant_settings
from tenants.credential_feed import Change
from tenants.db import tenant_tx, utcnow
from tenants.open_counts import OpenCounts
from tenants.tickets import Holder
from tests.service import eventually

BOARD = Board("wiki", "tenant", Window.WEEK, LIKES)
KEY = (BOARD.tenant_id, BOARD.topic)


@pytest.fixture
def hub(connected: None, monkeypatch: pytest.MonkeyPatch) -> Hub:
    made = Hub()
    monkeypatch.setattr(made, "start", lambda: None)  # this Hub subscribes to nothing
    monkeypatch.setattr(OpenCounts, "_begin_beating", lambda _: None)
    return made


def follower_of(hub: Hub) -> Follower:
    reader = Reader(BOARD.tenant_id, public_only=False, is_anonymous=False)
    made = Follower(hub, "socket", reader, None, lambda _: True, lambda: None, lambda: False)
    made.follows[KEY] = Followed(BOARD, None)
    hub.add(KEY, made)
    return made


def sent_frames(follower: Follower) -> list[tuple[str, int]]:
    return [(one["type"], one["version"]) for one in map(orjson.loads, follower.frames())]


def publish(hub: Hub, version: int) -> None:
    hub.on_invalidation({"tenant": BOARD.tenant_id, "versions": {BOARD.topic: version, "tenant:1d:views": 99}})


def test_many_changes_are_sent_as_one_frame_and_none_twice(hub: Hub) -> None:
    follower = follower_of(hub)
    for version in (1, 2, 3):
        publish(hub, version)
    assert sent_frames(follower) == [("invalidated", 3)]
    publish(hub, 3)
    publish(hub, 2)
    assert sent_frames(follower) == []


def test_a_resync_never_sends_an_older_version_than_was_sent(hub: Hub) -> None:
    """PostgreSQL may be one behind what was published: a projection commits after it has published."""
    follower = follower_of(hub)
    publish(hub, 6)
    assert sent_frames(follower) == [("invalidated", 6)]
    hub.notify_followers(KEY, 5, "resync")
    assert sent_frames(follower) == [("resync", 6)]
    hub.notify_followers(KEY, 5, "resync")
    publish(hub, 7)
    assert sent_frames(follower) == [("resync", 7)]


def test_after_a_failover_all_followers_of_the_tenant_are_told_to_read_again(hub: Hub) -> None:
    follower = follower_of(hub)
    publish(hub, 6)
    assert sent_frames(follower) == [("invalidated", 6)]
    for tenant_id in ("other", BOARD.tenant_id):
        hub.on_invalidation({"tenant": tenant_id, "versions": {}, "resync": True})
    assert sent_frames(follower) == [("resync", 6)], "also of a board that was lost, whose version stays"


def test_a_follower_that_joins_while_the_process_stops_is_told_as_the_others_are(hub: Hub, tenant: str) -> None:
    follower = follower_of(hub)
    follower.reader = Reader(tenant, public_only=False, is_anonymous=False)
    before = open_sockets()
    hub.join(follower)
    assert open_sockets() == before + 1
    hub.end_all(RESTARTING)
    assert follower.close_code == RESTARTING
    late = follower_of(hub)
    late.reader = follower.reader
    hub.join(late)
    assert late.close_code == RESTARTING
    for one in (follower, late, late):
        hub.leave(one)
    assert open_sockets() == before, "who leaves twice is counted once"


def test_sockets_of_other_processes_count_too(hub: Hub, tenant: str) -> None:
    other, follower = Hub(), follower_of(hub)
    follower.reader = Reader(tenant, public_only=False, is_anonymous=False)
    with tenant_tx(tenant) as tx:
        tenant_settings.change(tx, {"limits": {"live_connections": 2}}, now=utcnow())
    for process in (hub, other, hub):
        process._open_counts.beat()
    assert [other._open_counts.open({(tenant, ALL): 9, (tenant, ""): 9}) for _ in range(2)] == [None, None]
    with pytest.raises(TooManyConnections):
        hub.join(follower)
    other._open_counts.close([(tenant, ALL), (tenant, "")])
    other._open_counts.beat()
    hub.join(follower)
    hub.leave(follower)


def connection_of(hub: Hub, tenant: str, client: str) -> Follower:
    made = follower_of(hub)
    made.reader = Reader(tenant, public_only=False, is_anonymous=False)
    made.holder = Holder(tenant, "client", client)
    return made


def test_when_connections_are_full_the_newest_of_a_caller_above_half_makes_way(hub: Hub, tenant: str) -> None:
    with tenant_tx(tenant) as tx:
        tenant_settings.change(tx, {"limits": {"live_connections": 4}}, now=utcnow())
    flood = [connection_of(hub, tenant, "flood") for _ in range(4)]
    for one in flood:
        hub.join(one)
    with pytest.raises(TooManyConnections):
        hub.join(connection_of(hub, tenant, "flood"))
    assert [one.close_code for one in flood] == [None] * 4, "nobody makes way for oneself"
    others = [connection_of(hub, tenant, "bob"), connection_of(hub, tenant, "eve")]
    for one in others:
        hub.join(one)
    assert [one.close_code for one in flood] == [None, None, TRY_AGAIN_LATER, TRY_AGAIN_LATER]
    with pytest.raises(TooManyConnections):
        hub.join(connection_of(hub, tenant, "ada"))
    assert [one.close_code for one in flood[:2]] == [None, None], "half is left to a caller"
    for one in (*flood, *others):
        hub.leave(one)
    assert hub._open_counts.count((tenant, "")) == 0, "whoever made way has left already, and is counted once"


def test_nobody_of_another_tenant_makes_way(hub: Hub, tenant: str, other_tenant: str) -> None:
    for one in (tenant, other_tenant):
        with tenant_tx(one) as tx:
            tenant_settings.change(tx, {"limits": {"live_connections": 2}}, now=utcnow())
    theirs = [connection_of(hub, other_tenant, "flood") for _ in range(2)]
    own = [connection_of(hub, tenant, name) for name in ("ada", "bob")]
    for connection in (*theirs, *own):
        hub.join(connection)
    with pytest.raises(TooManyConnections):
        hub.join(connection_of(hub, tenant, "eve"))
    assert [one.close_code for one in (*theirs, *own)] == [None] * 4
    for connection in (*theirs, *own):
        hub.leave(connection)


def test_a_tenant_that_cannot_be_checked_delays_the_revocations_of_no_other(
    hub: Hub, tenant: str, other_tenant: str
) -> None:
    stuck, revoked = follower_of(hub), follower_of(hub)
    is_over = threading.Event()
    stuck.is_valid = lambda _: is_over.wait(60)
    revoked.is_valid = lambda _: False
    for follower, tenant_id in ((stuck, tenant), (revoked, other_tenant)):
        follower.reader = Reader(tenant_id, public_only=False, is_anonymous=False)
        hub.join(follower)
        hub._on_credential_change(Change(1, tenant_id, [liveness.TENANT]))
    try:
        threading.Thread(target=hub._check_credentials, daemon=True).start()
        eventually(lambda: revoked.close_code == NO_LONGER_VALID)
        assert stuck.is_unchecked
    finally:
        is_over.set()
    eventually(lambda: not stuck.is_unchecked)
    assert stuck.close_code is None
    for follower in (stuck, revoked):
        hub.leave(follower)


def open_sockets() -> float:
    return REGISTRY.get_sample_value("plaudit_live_connections", {"kind": "socket"}) or 0
