"""Redis for tests: a single server of Debian's, and a Redis Cluster of three primaries without replicas."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from redis import Redis

from app.run.ports import reserve_port
from tests.servers.programs import Server, find
from tests.service import eventually

SLOTS = 16384
# As docs/operating.md advises for primaries without replicas; and replicas of tests need not wait for each other.
OF_CLUSTER = {
    "cluster-enabled": "yes",
    "cluster-node-timeout": 1000,
    "cluster-require-full-coverage": "no",
    "repl-diskless-sync-delay": 0,
}


class RedisServer(Server):
    name = "redis"

    def __init__(self, folder: Path, *, is_clustered: bool = False, program: str | None = None) -> None:
        super().__init__(folder)
        self.program = program or find("redis-server")
        self.bus_port = reserve_port()
        self.is_clustered = is_clustered

    def command(self) -> list[str]:
        options = {"port": self.port, "bind": "127.0.0.1", "save": "", "dir": self.folder, "loglevel": "warning"}
        if self.is_clustered:
            options |= OF_CLUSTER | {"cluster-port": self.bus_port}
        return [self.program, *(part for name, value in options.items() for part in (f"--{name}", str(value)))]

    def client(self) -> "Redis":
        return Redis(port=self.port, socket_timeout=5)

    def cluster(self, *command: str | int) -> str:
        """The answer to a command about the cluster."""
        with self.client() as client:
            answer = client.execute_command("CLUSTER", *command)
            return answer.decode() if isinstance(answer, bytes) else str(answer)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"


class RedisCluster:
    """Three primaries, each with a third of the slots. One that is killed and started again is in it again, empty."""

    def __init__(self, primaries: Sequence[RedisServer]) -> None:
        self.primaries = primaries
        for number, server in enumerate(primaries):
            server.cluster("SET-CONFIG-EPOCH", number + 1)
            first, after = SLOTS * number // len(primaries), SLOTS * (number + 1) // len(primaries)
            server.cluster("ADDSLOTSRANGE", first, after - 1)
            server.cluster("MEET", "127.0.0.1", primaries[0].port, primaries[0].bus_port)
        eventually(self.is_ok)

    @property
    def url(self) -> str:
        return url_of(self.primaries)

    def is_ok(self) -> bool:
        """Whether every primary knows that all slots are served."""
        served = ("cluster_state:ok", f"cluster_slots_assigned:{SLOTS}")
        return all(line in server.cluster("INFO") for server in self.primaries for line in served)


def url_of(nodes: Sequence[RedisServer]) -> str:
    return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in nodes)


@contextlib.contextmanager
def running_cluster(folder: Path) -> Iterator[RedisCluster]:
    with contextlib.ExitStack() as stack:
        servers = [RedisServer(folder / f"redis{number}", is_clustered=True) for number in range(3)]
        yield RedisCluster([stack.enter_context(server) for server in servers])
