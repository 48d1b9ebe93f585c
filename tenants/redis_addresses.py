"""Addresses of Redis: `redis://…` is one server, `redis+cluster://a:1,b:2,c:3` some nodes of a cluster. Pure."""

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

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
        return f"{self.scheme}://{login}{_joined(host, port)}/0{'?' if self.options else ''}{self.options}"


def shown(url: str) -> str:
    """The address for people: servers and ports, without the login."""
    if is_cluster(url):
        return ",".join(_joined(host, port) for host, port in ClusterAddress.parse(url).nodes)
    parts = urlsplit(url)
    return parts.path if parts.scheme == "unix" else _joined(parts.hostname or "", parts.port or DEFAULT_PORT)


def is_cluster(url: str) -> bool:
    return url.startswith(("redis+cluster://", "rediss+cluster://"))


def _joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _node(text: str) -> tuple[str, int]:
    found = _NODE.fullmatch(text)
    port = int(found[2] or DEFAULT_PORT) if found else 0
    if found is None or not 0 < port < 65_536:
        raise ValueError("not an address of a Redis Cluster's node")
    return found[1].strip("[]"), port
