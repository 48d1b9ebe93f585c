"""The port that a server listens on. No large libraries: `plaudit live` checks its port before it becomes gunicorn."""

import os
import socket

from app.settings import socket_address

BACKLOG = 2048


class CannotStart(Exception):
    """The message says why."""


class PortInUse(CannotStart):
    """The message says which."""


def listen(host: str, port: int, *, shares_port: bool) -> socket.socket:
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(
            address[:2], family=family, backlog=BACKLOG, reuse_port=shares_port, dualstack_ipv6=host == "::"
        )
    except OSError as error:
        why = error.strerror if isinstance(error, socket.gaierror) else os.strerror(error.errno or 0)
        raise PortInUse(f"Cannot listen on {socket_address(host, port)}: {why}") from None


def require_free(host: str, port: int) -> None:
    """Processes that share a port would share it with those of another service too."""
    listen(host, port, shares_port=False).close()
