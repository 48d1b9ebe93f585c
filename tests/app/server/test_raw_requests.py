"""Requests as bytes, to the application behind the real web server: bodies, headers and addresses of any kind."""

import gzip
import socket
import time
from urllib.parse import urlsplit

import pytest

from app.server import bodies, connection, site
from tests.analytics.conftest import likes_of, make_page, views_of
from tests.app.http.test_exports import EXPORT
from tests.app.http.test_fast_reads import BOARD
from tests.app.server.served import VIEWS, become_known, over_http
from tests.people import Caller


def raw(url: str, request: bytes, *, half_close: bool = False) -> bytes:
    address = urlsplit(url)
    with socket.create_connection((address.hostname, address.port), timeout=10) as connection:
        connection.sendall(request)
        if half_close:
            connection.shutdown(socket.SHUT_WR)
        received = b""
        while chunk := connection.recv(65536):
            received += chunk
        return received


def headers_of(caller: Caller, *more: str) -> bytes:
    lines = ["Host: x", "Connection: close", f"Authorization: Bearer {caller.token}", *more]
    return "".join(f"{line}\r\n" for line in lines).encode() + b"\r\n"


def test_chunked_bodies_are_received_as_far_as_they_may_be_long(admin: Caller, tenant: str, url: str) -> None:
    chunked = headers_of(admin, "Content-Type: application/json", "Transfer-Encoding: chunked")
    head = f"POST {VIEWS} HTTP/1.1\r\n".encode() + chunked
    before = views_of(tenant)
    assert raw(url, head + b'8\r\n{"id": "\r\n4\r\nab"}\r\n0\r\n\r\n').startswith(b"HTTP/1.1 202")
    assert views_of(tenant) == before + 1
    piece = b"10000\r\n" + b"x" * 65536 + b"\r\n"
    assert raw(url, head + piece * 17 + b"0\r\n\r\n").startswith(b"HTTP/1.1 413")


def test_a_body_that_ends_too_early_writes_nothing(admin: Caller, tenant: str, url: str) -> None:
    before = views_of(tenant)
    head = f"POST {VIEWS} HTTP/1.1\r\n".encode() + headers_of(
        admin, "Content-Type: application/json", "Content-Length: 99"
    )
    answer = raw(url, head + b'{"id": "early"}', half_close=True)
    assert not answer or b" 400 " in answer.splitlines()[0]
    assert views_of(tenant) == before


@pytest.mark.parametrize("chunks", [b"2\r\n{}\r\n", b'd\r\n{"id": "cut"}\r\n2\r\n  \r\n', b"zz\r\n"])
def test_a_chunked_body_that_is_cut_off_writes_nothing(admin: Caller, tenant: str, url: str, chunks: bytes) -> None:
    before = views_of(tenant)
    head = headers_of(admin, "Content-Type: application/json", "Transfer-Encoding: chunked")
    answer = raw(url, f"POST {VIEWS} HTTP/1.1\r\n".encode() + head + chunks, half_close=True)
    assert not answer or answer.startswith(b"HTTP/1.1 400"), answer
    assert views_of(tenant) == before


@pytest.mark.parametrize("framing", ["Content-Length: 15", "Transfer-Encoding: chunked"])
@pytest.mark.parametrize("path", [VIEWS, "/api/v1/auth/login", "/nowhere"])
def test_a_short_body_that_never_comes_takes_no_thread_and_is_refused(
    admin: Caller, url: str, in_threads: list[str], monkeypatch: pytest.MonkeyPatch, framing: str, path: str
) -> None:
    monkeypatch.setattr(connection, "MAX_RECEIVE_S", 0.2)
    monkeypatch.setattr(site, "SWEEP_EVERY_S", 0.05)
    address = urlsplit(url)
    with socket.create_connection((address.hostname, address.port), timeout=10) as sender:
        head = headers_of(admin, "Content-Type: application/json", framing)
        sender.sendall(f"POST {path} HTTP/1.1\r\n".encode() + head)
        time.sleep(0.05)
        assert in_threads == []
        answer = sender.recv(65536)
    assert answer.startswith((b"HTTP/1.1 400", b"HTTP/1.1 404")), answer
    assert b"application/problem+json" in answer


def test_a_long_body_is_read_after_the_caller_is_known_and_not_before(admin: Caller, tenant: str, url: str) -> None:
    events = [{"type": "view", "page": "a", "id": f"{number:0100}"} for number in range(999)]
    before = views_of(tenant)
    answer = over_http(admin, url)("POST", "/api/v1/events", json={"events": events})
    assert (answer.status_code, views_of(tenant)) == (202, before + 999)
    # Nothing of the body is ever sent.
    head = b"POST /api/v1/events HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n"
    assert raw(url, head + b"Authorization: Bearer nonsense\r\nContent-Length: 900000\r\n\r\n").startswith(
        b"HTTP/1.1 401"
    )
    too_long = headers_of(admin, "Content-Type: application/json", "Content-Length: 2000000")
    assert raw(url, b"POST /api/v1/events HTTP/1.1\r\n" + too_long).startswith(b"HTTP/1.1 413")


def test_who_sends_a_long_body_too_slowly_is_refused(
    admin: Caller, tenant: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "MAX_RECEIVE_S", 0.1)
    head = headers_of(admin, "Content-Type: application/json", "Content-Length: 900000")
    answer = raw(url, b"POST /api/v1/events HTTP/1.1\r\n" + head + b'{"events": [')
    assert answer.startswith(b"HTTP/1.1 400")
    assert b"before it was complete" in answer


def test_a_packed_or_longer_body_is_read_by_a_thread(admin: Caller, url: str, in_threads: list[str]) -> None:
    remote = over_http(admin, url)
    become_known(remote, in_threads)
    packed = {"data": gzip.compress(b'{"id": "packed"}'), "headers": {"Content-Encoding": "gzip"}}
    assert remote("POST", VIEWS, content_type="application/json", **packed).status_code == 202
    assert remote("POST", VIEWS, data=b" " * 3_000 + b"{}", content_type="application/json").status_code == 202
    assert in_threads == [VIEWS] * 2


def test_a_header_with_an_underscore_is_not_taken_for_another_one(admin: Caller, url: str) -> None:
    request = b"GET /api/v1/me HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
    spoofed = request + f"X_Request_Id: mine\r\nAuthorization: Bearer {admin.token}\r\n\r\n".encode()
    answer = raw(url, spoofed)
    assert answer.startswith(b"HTTP/1.1 200")
    assert b"mine" not in answer


def test_cookies_and_repeated_headers_are_joined(admin: Caller, url: str) -> None:
    request = f"GET {BOARD} HTTP/1.1\r\n".encode()
    answer = raw(url, request + headers_of(admin, 'If-None-Match: "a"', "If-None-Match: *"))
    assert answer.startswith(b"HTTP/1.1 304")
    assert answer.endswith(b"\r\n\r\n"), "without a body"


@pytest.mark.parametrize("header", [b"Authorization: Bearer \xff\xfe", b"If-None-Match: \xff", b"X-Request-Id: \xe4"])
@pytest.mark.parametrize("method", [b"GET /api/v1/leaderboards", b"POST /api/v1/pages/a/views"])
def test_a_header_that_is_not_text_is_no_error_of_ours(admin: Caller, url: str, header: bytes, method: bytes) -> None:
    answer = raw(url, method + b" HTTP/1.1\r\n" + header + b"\r\n" + headers_of(admin))
    assert answer.split()[1] in {b"200", b"202", b"304", b"400", b"401"}, answer


def test_a_header_that_is_not_text_is_there_all_the_same(admin: Caller, tenant: str, url: str) -> None:
    before = views_of(tenant)
    request = f"POST {VIEWS} HTTP/1.1\r\n".encode() + b"Idempotency-Key: cl\xe9\r\n" + headers_of(admin)
    for _ in range(2):
        assert raw(url, request).split()[1] in {b"400", b"422"}, "it is no key, and the view is not written without one"
    assert views_of(tenant) == before


def test_who_sends_two_tokens_has_none(admin: Caller, url: str) -> None:
    become_known(over_http(admin, url), [])
    request = f"GET {BOARD} HTTP/1.1\r\nAuthorization: Bearer another\r\n".encode() + headers_of(admin)
    assert raw(url, request).startswith(b"HTTP/1.1 401")


def test_an_address_in_other_letters_or_too_long_is_answered(admin: Caller, url: str) -> None:
    for path, status in (("/%FF%FE", 404), ("/%C3%A4", 404), ("/" + "x" * 9_000, 414), ("/a%2Fb", 404)):
        answer = raw(url, f"GET {path} HTTP/1.1\r\n".encode() + headers_of(admin))
        assert answer.startswith(f"HTTP/1.1 {status}".encode()), path
        assert b"application/problem+json" in answer or status == 404


def test_an_address_that_is_too_long_is_not_taken_for_a_shorter_one(admin: Caller, tenant: str, url: str) -> None:
    page = "p" * 100
    make_page(admin, page)
    become_known(over_http(admin, url), [])
    path = f"/api/v1/pages/{page}/likes/{'u' * 9_000}"
    assert raw(url, f"PUT {path} HTTP/1.1\r\n".encode() + headers_of(admin)).startswith(b"HTTP/1.1 414")
    assert admin("PUT", path).status_code == 414
    assert likes_of(tenant, page) == (0, 0)


def test_head_answers_have_no_body(admin: Caller, url: str) -> None:
    for path in (BOARD, "/health/live", EXPORT):
        answer = raw(url, f"HEAD {path} HTTP/1.1\r\n".encode() + headers_of(admin))
        assert answer.startswith(b"HTTP/1.1 200")
        assert answer.endswith(b"\r\n\r\n")


def test_there_are_no_sockets_here(admin: Caller, url: str) -> None:
    upgrade = headers_of(
        admin, "Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA=="
    ).replace(b"Connection: close", b"Connection: Upgrade, close")
    assert b" 404 " in raw(url, b"GET /ws/leaderboards HTTP/1.1\r\n" + upgrade).splitlines()[0]
