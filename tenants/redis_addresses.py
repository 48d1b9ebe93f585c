"""Addresses of Redis: `redis://…` is one server, `redis+cluster://a:1,b:2,c:3` some nodes of a cluster. Pure."""

import re
from dataclasses import dataclass

DEFAULT_PORT = 6379

_CLUSTER = re.compile(r"(rediss?)\+cluster://(?:([^/?#]*)@)?([^/?#@]+)/?(?:\?([^#]*))?")
_NODE = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\[\]:\s]+)(?::([0-9]{1,5}))?")


@dataclass(frozen=True)
class ClusterAddress:
    """What one of a cluster's addresses says: TLS or not, the login, some nodes to ask for the others, and options."""

    scheme: str
    login: str
    nodes: tuple[tuple[str, int], ...]
    options: str

    @classmethod
    def parse(cls, url: str) -> "ClusterAddress":
        """Raises ValueError, without the address, which may have a password."""
        found = _CLUSTER.fullmatch(url)
        if found is None:
            raise ValueError("not an address of a Redis Cluster")
        scheme, login, hosts, options = found.groups(default="")
        return cls(scheme, login, tuple(_node(host) for host in hosts.split(",")), options)

    def url_of(self, host: str, port: int) -> str:
        """The address of one node."""
        login = f"{self.login}@" if self.login else ""
        name = f"[{host}]" if ":" in host else host
        return f"{self.scheme}://{login}{name}:{port}/0{'?' if self.options else ''}{self.options}"


def is_cluster(url: str) -> bool:
    return url.startswith(("redis+cluster://", "rediss+cluster://"))


def _node(text: str) -> tuple[str, int]:
    found = _NODE.fullmatch(text)
    port = int(found[2] or DEFAULT_PORT) if found else 0
    if found is None or not 0 < port < 65_536:
        raise ValueError("not an address of a Redis Cluster's node")
    return found[1].strip("[]"), port
