"""Debian's Redis for tests: a Redis Cluster of three primaries without replicas, and a single server."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from redis import Redis

from tests.servers.programs import Server, find
from tests.service import eventually, free_port

SLOTS = 16384


class RedisServer(Server):
    name = "redis"

    def __init__(self, folder: Path, *, is_clustered: bool = False) -> None:
        super().__init__(folder)
        self.program = find("redis-server")
        self.bus_port = free_port()
        self.is_clustered = is_clustered

    def command(self) -> list[str]:
        options = {"port": self.port, "bind": "127.0.0.1", "save": "", "dir": self.folder, "loglevel": "warning"}
        if self.is_clustered:
            # As docs/operating.md advises for primaries without replicas.
            own = {"cluster-node-timeout": 2000, "cluster-require-full-coverage": "no"}
            options |= {"cluster-enabled": "yes", "cluster-port": self.bus_port} | own
        return [self.program, *(part for name, value in options.items() for part in (f"--{name}", str(value)))]

    def client(self) -> "Redis":
        return Redis(port=self.port, socket_timeout=5)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"


class RedisCluster:
    """Three primaries, each with a third of the slots. One that is killed and started again is in it again, empty."""

    def __init__(self, primaries: list[RedisServer]) -> None:
        self.primaries = primaries
        for number, server in enumerate(primaries):
            with server.client() as client:
                client.execute_command("CLUSTER SET-CONFIG-EPOCH", number + 1)
                first, after = SLOTS * number // len(primaries), SLOTS * (number + 1) // len(primaries)
                client.execute_command("CLUSTER ADDSLOTSRANGE", first, after - 1)
                client.execute_command("CLUSTER MEET", "127.0.0.1", primaries[0].port, primaries[0].bus_port)
        eventually(self.is_ok)

    @property
    def url(self) -> str:
        return "redis+cluster://" + ",".join(f"127.0.0.1:{server.port}" for server in self.primaries)

    def is_ok(self) -> bool:
        """Whether every primary knows that all slots are served."""
        return all(self._state(server) == "ok" for server in self.primaries)

    def _state(self, server: RedisServer) -> str:
        with server.client() as client:
            return str(client.execute_command("CLUSTER INFO")["cluster_state"])


@contextlib.contextmanager
def running_cluster(folder: Path) -> Iterator[RedisCluster]:
    with contextlib.ExitStack() as stack:
        servers = [RedisServer(folder / f"redis{number}", is_clustered=True) for number in range(3)]
        yield RedisCluster([stack.enter_context(server) for server in servers])
