"""The head of a request: what is refused by it, and what WSGI is told."""

from typing import Any

import httptools
import pytest

from app.server import heads
from app.server.heads import NotAccepted


class Parsed:
    """What the parser calls, as far as a head needs it."""

    def __init__(self, head: bytes) -> None:
        self.environ: dict[str, Any] = {}
        self.url = b""
        self.parser = httptools.HttpRequestParser(self)
        self.parser.feed_data(head)

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.environ[f"HTTP_{name.decode().upper().replace('-', '_')}"] = value.decode("latin-1")

    def complete(self) -> dict[str, Any]:
        heads.complete(self.environ, self.url, self.parser)
        return self.environ


def test_the_address_is_split_and_decoded() -> None:
    environ = Parsed(b"GET /a%2Fb?c=%41 HTTP/1.1\r\nHost: x\r\n\r\n").complete()
    assert environ["PATH_INFO"] == "/a/b"
    assert environ["QUERY_STRING"] == "c=%41"
    assert (environ["REQUEST_METHOD"], environ["SERVER_PROTOCOL"]) == ("GET", "HTTP/1.1")


@pytest.mark.parametrize("host", ["x", "wiki.example:8000", "[::1]:8000", "", "xn--bcher-kva.example"])
def test_a_host_is_a_name_or_an_address(host: str) -> None:
    Parsed(f"GET / HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()).complete()


@pytest.mark.parametrize("host", ["a/b", "a b", "a@b", "a,b", "a\\b", '"a"', "<a>"])
def test_another_host_is_refused(host: str) -> None:
    with pytest.raises(NotAccepted, match="Host"):
        Parsed(f"GET / HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()).complete()


def test_only_a_client_of_http_1_0_may_leave_out_the_host() -> None:
    Parsed(b"GET / HTTP/1.0\r\n\r\n").complete()
    with pytest.raises(NotAccepted, match="Host header is missing"):
        Parsed(b"GET / HTTP/1.1\r\n\r\n").complete()


def test_the_length_is_what_the_head_says() -> None:
    assert heads.body_length({}) == 0
    assert heads.body_length({"CONTENT_LENGTH": "3"}) == 3
    assert heads.body_length({"HTTP_TRANSFER_ENCODING": "chunked"}) is None
