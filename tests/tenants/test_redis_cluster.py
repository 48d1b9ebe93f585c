"""A cluster is used like a server; a node that is away costs only what is on it, and next to no time."""

import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from analytics.boards import redis_store
from tenants.redis_addresses import ClusterAddress
from tenants.redis_cluster import GuardedCluster, slot_of
from tenants.redis_server import PROBE_EVERY_S, TIMEOUT_S, Outage, RedisUnavailable
from tests.redis_nodes import Node, node_of_slot, running_nodes, url_of
from tests.service import eventually


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[Node]]:
    with running_nodes() as nodes:
        yield nodes


@pytest.fixture
def cluster(nodes: list[Node]) -> GuardedCluster:
    """Known by one of its nodes, and empty."""
    guarded = cluster_at(url_of(nodes[1:2]), timeout_s=2)
    guarded.redis.flushdb()
    return guarded


def cluster_at(url: str, *, timeout_s: float = TIMEOUT_S) -> GuardedCluster:
    return GuardedCluster.at(ClusterAddress.parse(url), name="test", outage=Outage(), timeout_s=timeout_s)


def key_on(number: int) -> str:
    """A key in the slots of this node."""
    return next(key for key in map(str, range(1000)) if node_of_slot(slot_of(("GET", key))) == number)


KEYS = [key_on(0), key_on(1), key_on(2)]


def test_commands_pipelines_and_scans_find_keys_on_all_nodes(cluster: GuardedCluster, nodes: list[Node]) -> None:
    with cluster.client() as redis, redis.pipeline(transaction=False) as pipe:
        for number, key in enumerate(KEYS):
            redis.set(key, number)
            pipe.eval("return redis.call('INCRBY', KEYS[1], ARGV[1])", 1, key, 10)
            pipe.hset(f"{{{key}}}:hash", mapping={"a": 1})
        assert pipe.execute() == [10, 1, 11, 1, 12, 1]
        assert [redis.get(key) for key in KEYS] == [b"10", b"11", b"12"]
        assert sorted(redis.scan_iter("[0-9]*")) == sorted(key.encode() for key in KEYS)
    assert cluster.read(*(("GET", key) for key in reversed(KEYS))) == [b"12", b"11", b"10"]
    assert [node.client().dbsize() for node in nodes] == [2, 2, 2]


def test_reading_the_keys_of_one_slot_asks_one_node_once(cluster: GuardedCluster, nodes: list[Node]) -> None:
    def asked() -> list[int]:
        return [node.client().info("commandstats").get("cmdstat_get", {}).get("calls", 0) for node in nodes]

    cluster.read(("GET", KEYS[0]))
    before = asked()
    assert cluster.read(("GET", KEYS[2]), ("GET", f"{{{KEYS[2]}}}:other")) == [None, None]
    assert [now - then for now, then in zip(asked(), before, strict=True)] == [0, 0, 2]


def test_a_message_reaches_subscribers_of_every_node(cluster: GuardedCluster, nodes: list[Node]) -> None:
    received = []
    for node in nodes:
        pubsub: Any = node.client().pubsub(ignore_subscribe_messages=True)  # type: ignore[no-untyped-call]
        pubsub.subscribe("news")
        pubsub.get_message(timeout=1)
        received.append(pubsub)
    cluster.redis.publish("news", "x")
    for pubsub in received:
        assert eventually(partial(pubsub.get_message, timeout=0.1))["data"] == b"x"


def test_a_node_that_hangs_costs_its_own_keys_half_a_second_once_and_others_nothing(
    nodes: list[Node], logged: Callable[[], list[dict[str, Any]]]
) -> None:
    cluster = cluster_at(url_of(nodes))
    cluster.read(*(("GET", key) for key in KEYS))
    with nodes[0].hung():
        began = time.monotonic()
        assert cluster.read(*(("EXISTS", key) for key in KEYS))[0] is None
        assert time.monotonic() - began < 0.5
        began, until = time.monotonic(), time.monotonic() + 0.5 * PROBE_EVERY_S
        tried = 0
        while time.monotonic() < until:
            tried += 1
            with pytest.raises(RedisUnavailable):
                cluster.read(("EXISTS", KEYS[0]))
            assert cluster.read(("EXISTS", KEYS[1]), ("EXISTS", KEYS[2])) == [0, 0]
            with pytest.raises(RedisUnavailable), cluster.client() as redis:
                redis.get(KEYS[0])
        assert tried > 5, "an open breaker asks nobody"
        assert not cluster.is_up()
    eventually(cluster.is_up)
    eventually(lambda: cluster.read(("EXISTS", KEYS[0])) == [0] and len(logged()) > 1)
    assert [line["action"] for line in logged()] == ["redis.outage", "redis.recovered"]


def test_a_pipeline_with_a_node_away_writes_to_the_others_and_fails(nodes: list[Node], cluster: GuardedCluster) -> None:
    brief = cluster_at(url_of(nodes))
    brief.read(*(("GET", key) for key in KEYS))
    with nodes[1].hung(), brief.client() as redis, redis.pipeline(transaction=False) as pipe:
        for key in KEYS:
            pipe.set(key, "x")
        with pytest.raises(RedisUnavailable):
            pipe.execute()
        for key in KEYS:
            pipe.strlen(key)
        first, missing, last = pipe.execute(raise_on_error=False)
        assert (first, type(missing), last) == (1, RedisUnavailable, 1)
        with pytest.raises(RedisUnavailable):
            redis.flushdb()
        assert redis.get(KEYS[2]) is None
    eventually(cluster.is_up)


def test_slots_are_followed_while_they_move_and_after(cluster: GuardedCluster, nodes: list[Node]) -> None:
    slot, (origin, goal) = slot_of(("GET", KEYS[0])), nodes[:2]
    ids = [node.cluster("MYID") for node in (origin, goal)]
    cluster.read(("GET", KEYS[0]))
    goal.cluster("SETSLOT", slot, "IMPORTING", ids[0])
    origin.cluster("SETSLOT", slot, "MIGRATING", ids[1])
    try:
        with cluster.client() as redis:
            assert redis.set(KEYS[0], "moving"), "asked at the goal, since the origin does not have it"
            assert cluster.read(("GET", KEYS[0]), ("GET", KEYS[2])) == [b"moving", None]
            assert goal.client().dbsize() == 1
        for node in (goal, origin):
            node.cluster("SETSLOT", slot, "NODE", ids[1])
        assert cluster.read(("GET", KEYS[0]), ("GET", KEYS[2])) == [b"moving", None]
        assert cluster.is_up()
    finally:
        cluster.redis.flushdb()
        for node in nodes:
            node.cluster("SETSLOT", slot, "NODE", ids[0])


def test_a_cluster_that_is_away_is_noticed_at_its_first_use_and_costs_little(
    logged: Callable[[], list[dict[str, Any]]],
) -> None:
    cluster = cluster_at("redis+cluster://127.0.0.1:1,127.0.0.1:2")
    assert logged() == []
    began = time.monotonic()
    for _ in range(200):
        with pytest.raises(RedisUnavailable):
            cluster.read(("GET", "a"))
        assert not cluster.is_up()
    assert time.monotonic() - began < 0.5
    assert [(line["action"], line["data"]["server"]) for line in logged()] == [
        ("redis.outage", "127.0.0.1:1,127.0.0.1:2")
    ]


def test_a_node_that_does_not_know_the_others_is_not_believed_for_long(nodes: list[Node], tmp_path: Path) -> None:
    alone = Node(tmp_path / "alone")
    try:
        alone.cluster("ADDSLOTS", slot_of(("GET", KEYS[0])))
        cluster = cluster_at(url_of([alone, *nodes]), timeout_s=2)
        for _ in range(20):  # whichever node is asked first
            assert cluster.redis.nodes.update()
            assert cluster.is_up()
    finally:
        alone.kill()


def test_a_slot_that_no_node_has_is_as_a_node_that_is_away(cluster: GuardedCluster, nodes: list[Node]) -> None:
    slot = slot_of(("GET", KEYS[0]))
    assert (cluster.is_up(), cluster.partly_away_s) == (True, 0.0)
    for node in nodes:
        node.cluster("DELSLOTS", slot)
    try:
        assert cluster.redis.nodes.update()
        away_s = cluster.partly_away_s
        assert cluster.read(("GET", KEYS[0]), ("GET", KEYS[2])) == [None, None]
        assert not cluster.is_up()
        assert cluster.partly_away_s > away_s > 0
    finally:
        nodes[0].cluster("ADDSLOTS", slot)
    eventually(cluster.is_up)
    assert cluster.partly_away_s == 0.0


def test_many_threads_find_the_nodes_together(nodes: list[Node]) -> None:
    cluster = cluster_at(url_of(nodes), timeout_s=5)
    failed = []

    def read() -> None:
        try:
            cluster.read(*(("GET", key) for key in KEYS))
        except RedisUnavailable as error:
            failed.append(error)

    threads = [threading.Thread(target=read) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []


def test_what_a_cluster_cannot_do_is_refused(cluster: GuardedCluster) -> None:
    with pytest.raises(ValueError, match="use a script"):
        cluster.redis.pipeline()
    with pytest.raises(ValueError, match="no key"):
        cluster.redis.info("server")


def test_a_promoted_replica_is_read_within_a_second_and_trusted_for_nothing(nodes: list[Node], tmp_path: Path) -> None:
    """(The last test here, since it replaces a node.)"""
    lost, replica = nodes[2], Node(tmp_path / "replica")
    try:
        replica.cluster("MEET", "127.0.0.1", nodes[0].port, nodes[0].bus_port)
        eventually(lambda: "cluster_known_nodes:4" in replica.cluster("INFO"))
        eventually(lambda: replica.cluster("REPLICATE", lost.cluster("MYID")))
        cluster, other = (cluster_at(url_of(nodes), timeout_s=2) for _ in range(2))
        cluster.redis.set(KEYS[2], "kept")
        eventually(lambda: replica.client().dbsize() == lost.client().dbsize() > 0)
        before = redis_store.run_id(cluster.redis)
        assert other.is_up()
        lost.kill()
        assert not other.is_up()
        with pytest.raises(RedisUnavailable):
            cluster.read(("GET", KEYS[2]))
        with pytest.raises(RedisUnavailable):
            redis_store.run_id(cluster.redis)
        replica.cluster("FAILOVER", "TAKEOVER")
        eventually(lambda: answered(cluster, KEYS[2]) == b"kept", within_s=10)
        eventually(other.is_up, within_s=10)
        assert redis_store.run_id(cluster.redis) != before
        assert not cluster.outage.is_on, "nobody waits for the one that was replaced"
    finally:
        replica.kill()


def answered(cluster: GuardedCluster, key: str) -> bytes | None:
    try:
        return bytes(cluster.read(("GET", key))[0])
    except RedisUnavailable:
        return None
