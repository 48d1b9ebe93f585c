"""A Redis Cluster of the embedded Valkey, for tests: three primaries without replicas."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from redis import Redis

from app.run import launcher
from app.run.local_servers import stop
from app.run.server_files import wheel_binaries
from tests.conftest import reachable_folder
from tests.service import eventually, free_port

SLOTS = 16384


class Node:
    def __init__(self, folder: Path) -> None:
        self.port, self.bus_port = free_port(), free_port()
        folder.mkdir()
        self._folder = folder
        self.start()

    def start(self) -> None:
        options = {
            "port": self.port,
            "cluster-port": self.bus_port,
            "bind": "127.0.0.1",
            "dir": self._folder,
            "save": "",
            "cluster-enabled": "yes",
            "cluster-node-timeout": 1000,
            "cluster-require-full-coverage": "no",
            "repl-diskless-sync-delay": 0,
        }
        ends_with_us = [sys.executable, "-I", "-S", str(launcher.__file__), str(os.getpid()), "SIGKILL", "-"]
        arguments = [str(part) for name, value in options.items() for part in (f"--{name}", value)]
        command = [str(wheel_binaries().valkey), *arguments]
        self.process = subprocess.Popen([*ends_with_us, *command], stdout=subprocess.DEVNULL)
        eventually(self.client().ping)

    def client(self) -> "Redis":
        return Redis(port=self.port, socket_timeout=5)

    def cluster(self, *command: str | int) -> str:
        with self.client() as client:
            answer = client.execute_command("CLUSTER", *command)
            return answer.decode() if isinstance(answer, bytes) else str(answer)

    @contextlib.contextmanager
    def hung(self) -> Iterator[None]:
        os.kill(self.process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.process.pid, signal.SIGCONT)

    def kill(self) -> None:
        stop(self.process, signal.SIGKILL)


@contextlib.contextmanager
def running_nodes() -> Iterator[list[Node]]:
    """Three nodes, each with a third of the slots."""
    with reachable_folder() as folder, contextlib.ExitStack() as stack:
        nodes = []
        for number in range(3):
            nodes.append(Node(folder / f"node{number}"))
            stack.callback(nodes[-1].kill)
        for number, node in enumerate(nodes):
            node.cluster("SET-CONFIG-EPOCH", number + 1)
            first, after = SLOTS * number // 3, SLOTS * (number + 1) // 3
            node.cluster("ADDSLOTSRANGE", first, after - 1)
            node.cluster("MEET", "127.0.0.1", nodes[0].port, nodes[0].bus_port)
        eventually(lambda: all(knows_all(node) for node in nodes))
        yield nodes


def knows_all(node: Node) -> bool:
    info = node.cluster("INFO")
    return "cluster_state:ok" in info and f"cluster_slots_assigned:{SLOTS}" in info


def url_of(nodes: list[Node]) -> str:
    return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in nodes)
