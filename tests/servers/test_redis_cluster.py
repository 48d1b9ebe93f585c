"""A node whose boards are on a Redis Cluster of three, and its queue on a Redis of its own."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

import pytest

from tests.servers.nodes import Client, Node, Traffic, shared_env
from tests.servers.postgres import Postgres
from tests.servers.redis_cluster import RedisCluster, RedisServer, running_cluster
from tests.service import eventually, plaudit


@dataclass
class Site:
    node: Node
    client: Client
    cluster: RedisCluster


@pytest.fixture(scope="module")
def site(folder: Path, postgres: Postgres, redis: RedisServer) -> Iterator[Site]:
    with running_cluster(folder) as cluster:
        env = shared_env(database=postgres.url(), redis=cluster.url, PLAUDIT_QUEUE_REDIS_URL=redis.url)
        with Node(folder / "node", env, "--demo", "--no-traffic") as node:
            client = Client(node.url, node.ready)
            client.prepare()
            yield Site(node, client, cluster)


def test_a_like_is_pushed_and_on_the_board_of_the_cluster(site: Site) -> None:
    socket = site.client.follow(url=f"http://127.0.0.1:{site.node.live_port}")
    assert site.client("PUT", "/api/v1/pages/p1/likes/ann").ok
    version = socket.read_until("invalidated")["version"]
    eventually(lambda: (board := site.client.board())["source"] == "redis" and board["version"] >= version)
    assert site.client.values() == {"p1": 1}
    assert all(server.client().dbsize() for server in site.cluster.primaries), "boards are on every node"


def test_one_killed_primary_fails_no_read_and_boards_are_right_when_it_is_back(site: Site) -> None:
    eventually(site.node.boards_are_right, every_s=0.5)
    with Traffic(site.client, callers=2) as traffic:
        site.cluster.primaries[1].kill()
        slowest, sources = 0.0, set()
        for limit in range(1, 101):  # each with another limit, so that none is answered from memory
            for scope in ("tenant", "space:s"):
                began = monotonic()
                sources.add(site.client.board(scope=scope, limit=limit)["source"])
                slowest = max(slowest, monotonic() - began)
        assert slowest < 2
        assert sources - {"redis"}, "a board of the killed node was read"
        site.cluster.primaries[1].start()
        eventually(site.cluster.is_ok)
    assert not traffic.refused
    eventually(site.node.boards_are_right, every_s=0.5)
    eventually(lambda: site.client.board()["source"] == "redis")


@pytest.mark.parametrize(
    ("env", "says"),
    [
        ({"PLAUDIT_QUEUE_REDIS_URL": ""}, "PLAUDIT_QUEUE_REDIS_URL"),
        ({"PLAUDIT_QUEUE_REDIS_URL": "redis+cluster://127.0.0.1:1"}, "PLAUDIT_QUEUE_REDIS_URL"),
    ],
)
def test_the_queue_needs_a_redis_of_its_own(site: Site, env: dict[str, str], says: str) -> None:
    done = plaudit("worker", data_dir=site.node.data_dir, env=site.node.env | env)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert says in line
