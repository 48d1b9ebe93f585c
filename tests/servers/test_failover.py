"""PostgreSQL fails over to a streaming standby, under traffic and without a restart of Plaudit."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.live import Socket
from tests.servers.nodes import Client, Node, Traffic, counted, shared_env
from tests.servers.postgres import Postgres
from tests.servers.redis_cluster import RedisServer
from tests.service import eventually


@dataclass
class Pair:
    primary: Postgres
    standby: Postgres
    node: Node
    client: Client

    def cut_off_standby(self) -> None:
        """From here on it gets nothing. Until here it has everything."""
        ((position,),) = self.primary.execute("SELECT pg_current_wal_lsn()")
        eventually(lambda: self.standby.execute(f"SELECT 1 WHERE pg_last_wal_replay_lsn() >= '{position}'"))
        self.standby.set("primary_conninfo", "")
        eventually(lambda: not self.standby.execute("SELECT 1 FROM pg_stat_wal_receiver"))

    def fail_over(self) -> None:
        self.primary.kill()
        self.standby.promote()


@pytest.fixture
def pair(tmp_path: Path, folder: Path, redis: RedisServer) -> Iterator[Pair]:
    """A node that knows both servers by one address, and prepared pages."""
    own = folder / tmp_path.name
    own.mkdir(mode=0o711)
    with (
        Postgres(own / "primary") as primary,
        Postgres(own / "standby", copied_from=primary) as standby,
    ):
        both = f"postgresql://plaudit@127.0.0.1:{primary.port},127.0.0.1:{standby.port}/plaudit"
        env = shared_env(database=both, redis=redis.url)
        with Node(own / "node", env, "--demo", "--no-traffic") as node:
            client = Client(node.url, node.ready)
            client.prepare()
            yield Pair(primary, standby, node, client)


def test_a_synchronous_standby_has_all_that_was_acknowledged_once(pair: Pair) -> None:
    pair.primary.set("synchronous_standby_names", "*")
    with Traffic(pair.client) as traffic:
        traffic.wait_for(150)
        pair.fail_over()
        traffic.wait_for(150)
    assert counted(pair.standby) == traffic.acknowledged
    eventually(pair.node.boards_are_right, every_s=0.5)


def test_boards_forget_what_an_asynchronous_standby_never_got(pair: Pair) -> None:
    """Numbers equal PostgreSQL again within 60 s, and whoever followed a board hears of it: versions do not go back."""
    assert pair.client("PUT", "/api/v1/pages/p1/likes/ann").ok
    eventually(lambda: pair.client.values() == {"p1": 1})
    pair.cut_off_standby()
    for number in range(20):
        assert pair.client("PUT", f"/api/v1/pages/p2/likes/lost{number}").ok
    socket = pair.client.follow(url=f"http://127.0.0.1:{pair.node.live_port}", top=3)
    lost = pushed(socket, {"p2": 20, "p1": 1})
    pair.fail_over()
    again = pushed(socket, {"p1": 1})
    assert again["version"] > lost["version"]
    eventually(pair.node.boards_are_right, every_s=0.5)
    assert pair.client.values() == {"p1": 1}
    assert pair.client.board()["version"] > lost["version"]


def pushed(socket: Socket, values: dict[str, int]) -> dict[str, Any]:
    """The next message with these values; within 60 s, as boards are rebuilt."""
    while True:
        message = socket.read_until("top", within_s=60)
        if {item["page"]["external_id"]: item["value"] for item in message["items"]} == values:
            return message
