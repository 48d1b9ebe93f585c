"""Ports for local servers."""

import contextlib
import socket
from collections.abc import Iterator

import pytest

from app.run.ports import reserve_port


@pytest.fixture
def sockets() -> Iterator[list[socket.socket]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(socket.socket()) for _ in range(2_000)]


def test_nobody_else_gets_a_reserved_port_and_a_server_listens_there(sockets: list[socket.socket]) -> None:
    reserved = {reserve_port() for _ in range(100)}
    assert len(reserved) == 100
    for opened in sockets:
        opened.bind(("127.0.0.1", 0))
    assert not reserved & {opened.getsockname()[1] for opened in sockets}
    for port in reserved:
        with socket.create_server(("127.0.0.1", port)) as server:
            assert server.getsockname()[1] == port


def test_a_reserved_port_is_not_given_to_a_process_that_asks_for_it_without_being_a_server() -> None:
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", reserve_port()))
