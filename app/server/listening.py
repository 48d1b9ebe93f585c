"""The port that a server listens on. No large libraries: `plaudit live` checks its port before it becomes gunicorn."""

import contextlib
import ctypes
import errno
import os
import socket
import struct
import time

from app.settings import socket_address

BACKLOG = 2048
# A network's round trip, and more: a client that has begun to connect sends its request within this time.
HANDSHAKE_S = 0.05
# The number that Linux gives this socket option on all processors. Python's library has no name for it.
SO_ATTACH_FILTER = 26
# Longer than a killed process needs on a busy machine.
PREDECESSORS_END_WITHIN_S = 2.0


class CannotStart(Exception):
    """The message says why."""


class PortInUse(CannotStart):
    """The message says which. `is_taken`: another process has it; else nobody could listen there."""

    def __init__(self, message: str, *, is_taken: bool) -> None:
        super().__init__(message)
        self.is_taken = is_taken


def listen(host: str, port: int, *, shares_port: bool) -> socket.socket:
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(
            address[:2], family=family, backlog=BACKLOG, reuse_port=shares_port, dualstack_ipv6=host == "::"
        )
    except OSError as error:
        why = error.strerror if isinstance(error, socket.gaierror) else os.strerror(error.errno or 0)
        message = f"Cannot listen on {socket_address(host, port)}: {why}"
        raise PortInUse(message, is_taken=error.errno == errno.EADDRINUSE) from None


def require_free(host: str, port: int) -> None:
    """Processes that share a port would share it with those of another service too.

    It may be of processes that have just been killed with their parent, whose place this one takes.
    """
    deadline = time.monotonic() + PREDECESSORS_END_WITHIN_S
    while True:
        try:
            return listen(host, port, shares_port=False).close()
        except PortInUse as error:
            if not error.is_taken or time.monotonic() > deadline:
                raise
        time.sleep(0.02)


def ignore_new(listening: socket.socket) -> None:
    """Have the kernel ignore clients that begin to connect. Those that have begun can still be accepted.

    To close a listening socket resets what nobody has accepted, and whoever was connected may have sent a request. So
    the last connections must be accepted first, without new ones meanwhile. A client that is ignored tries again after
    a second, when nobody listens any more: its connection is refused, and a proxy chooses another node.
    """
    with contextlib.suppress(OSError):  # a kernel without filters: then a connection of the last moment is reset
        program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *each) for each in _NO_NEW_CONNECTIONS))
        length = len(_NO_NEW_CONNECTIONS)
        listening.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("HP", length, ctypes.addressof(program)))


def has_waiting(listening: socket.socket) -> bool:
    """Whether a connection waits to be accepted."""
    info = listening.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 28)
    (waiting,) = struct.unpack_from("I", info, 24)  # tcpi_unacked counts them, for a socket that listens
    return bool(waiting)


# For the kernel's packet filter: code, jump if true, jump if false, operand.
_NO_NEW_CONNECTIONS = (
    (0x30, 0, 0, 13),  # load the byte of TCP's flags
    (0x45, 0, 1, 0x02),  # SYN?
    (0x06, 0, 0, 0),  # drop the packet
    (0x06, 0, 0, 0xFFFFFFFF),  # keep it
)
