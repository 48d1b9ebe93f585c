"""Ports for servers on this machine that nobody chose a port for."""

import socket


def reserve_port() -> int:
    """A free port of the loopback address, which for some seconds nobody else gets.

    A port that is only looked up can be given to another process before its server listens there, also as the local end
    of a connection. The system gives nobody a port on which a connection was just closed, for a minute on Linux; a
    server may listen there all the same, since servers set SO_REUSEADDR.
    """
    with socket.socket() as server, socket.socket() as client:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", 0))
        server.listen(1)
        client.connect(server.getsockname())
        server.accept()[0].close()  # whoever closes first keeps the port
        return int(server.getsockname()[1])
