"""A port that cannot be listened on is said in one line; and the last connections to one are accepted."""

import contextlib
import socket

import pytest

from app.server.listening import PortInUse, has_waiting, ignore_new, listen, require_free


def test_a_port_that_is_taken_or_an_address_that_is_wrong_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PortInUse, match=f"^Cannot listen on 127.0.0.1:{port}: Address already in use$"):
            require_free("127.0.0.1", port)
    require_free("127.0.0.1", port)
    with pytest.raises(PortInUse, match=r"^Cannot listen on no\.such\.host\.invalid:1: "):
        require_free("no.such.host.invalid", 1)


def test_who_is_connected_can_be_accepted_after_new_clients_are_ignored() -> None:
    with contextlib.ExitStack() as opened:
        listening = opened.enter_context(listen("127.0.0.1", 0, shares_port=True))
        address = listening.getsockname()
        assert not has_waiting(listening)
        first = opened.enter_context(socket.create_connection(address, timeout=10))
        assert has_waiting(listening)
        ignore_new(listening)
        with pytest.raises(TimeoutError):
            socket.create_connection(address, timeout=0.3)
        first.sendall(b"a request")
        accepted = opened.enter_context(listening.accept()[0])
        assert accepted.recv(100) == b"a request", "also what was sent afterwards"
        assert not has_waiting(listening)
