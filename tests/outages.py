"""A database that accepts no writes, a pooler without a server, and a node that a Citus has lost."""

import contextlib
import socket
import struct
import threading
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
