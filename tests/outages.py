"""A database that accepts no writes, a pooler without a server, and a node that a Citus has lost."""

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Iterator

import psycopg
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError, OperationalError

_LOGGED_IN = b"R\0\0\0\x08\0\0\0\0Z\0\0\0\x05I"


def read_only(url: str | None) -> str:
    """The address of the same database, whose transactions are read-only, as those of a standby are."""
    options = {"options": "-c default_transaction_read_only=on"}
    return make_url(url or "").update_query_dict(options).render_as_string(hide_password=False)


def lost_node() -> DBAPIError:
    """What a Citus answers if it cannot reach a node."""
    return OperationalError("SELECT", {}, psycopg.errors.ConnectionFailure("connection to the remote node failed"))


@contextlib.contextmanager
def silent_pooler() -> Iterator[str]:
    """A pooler that accepts logins and answers nothing else, as PgBouncer while PostgreSQL is down: its address."""
    clients: list[socket.socket] = []

    def serve() -> None:
        with contextlib.suppress(OSError):  # the test is over
            while True:
                client, _ = listening.accept()
                clients.append(client)
                (length,) = struct.unpack("!i", client.recv(4, socket.MSG_WAITALL))
                client.recv(length - 4, socket.MSG_WAITALL)
                client.sendall(_LOGGED_IN)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        serving = threading.Thread(target=serve, daemon=True)
        serving.start()
        yield f"postgresql://x@127.0.0.1:{listening.getsockname()[1]}/x?sslmode=disable&gssencmode=disable"
        listening.shutdown(socket.SHUT_RDWR)
        serving.join(60)
    for client in clients:
        client.close()


@contextlib.contextmanager
def slow_logins(address: str, *, by_s: float) -> Iterator[str]:
    """The address of a relay to this database: each login takes so much longer, and nothing else does."""
    at = make_url(address)
    sockets: list[socket.socket] = []

    def forward(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_RDWR)

    def relay(client: socket.socket) -> None:
        time.sleep(by_s)
        server = socket.create_connection((at.host, at.port))
        sockets.append(server)
        threading.Thread(target=forward, args=(server, client), daemon=True).start()
        forward(client, server)

    def serve() -> None:
        with contextlib.suppress(OSError):  # the test is over
            while True:
                client, _ = listening.accept()
                sockets.append(client)
                threading.Thread(target=relay, args=(client,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        serving = threading.Thread(target=serve, daemon=True)
        serving.start()
        yield at.set(host="127.0.0.1", port=listening.getsockname()[1]).render_as_string(hide_password=False)
        listening.shutdown(socket.SHUT_RDWR)
        serving.join(60)
    for each in sockets:
        each.close()
