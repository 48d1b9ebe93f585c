"""A port that cannot be listened on is said in one line."""

import socket

import pytest

from app.server.listening import PortInUse, require_free


def test_a_port_that_is_taken_or_an_address_that_is_wrong_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PortInUse, match=f"^Cannot listen on 127.0.0.1:{port}: Address already in use$"):
            require_free("127.0.0.1", port)
    require_free("127.0.0.1", port)
    with pytest.raises(PortInUse, match=r"^Cannot listen on no\.such\.host\.invalid:1: "):
        require_free("no.such.host.invalid", 1)
