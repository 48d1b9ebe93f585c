"""Bodies as no client library sends them, over a real socket to the real server."""

import socket
import time

import pytest

from tests.service import Service


@pytest.fixture(scope="module")
def service(demo_service: Service) -> Service:
    return demo_service


def exchange(service: Service, head: str, body: bytes, *, hang_up: bool = False) -> tuple[int, str]:
    """What comes back for exactly these bytes: the status, and what is said."""
    port = int(service.url.rsplit(":", 1)[1])
    token = service.token()
    lines = f"PATCH /api/v1/settings HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n"
    lines += f"Content-Type: application/json\r\nConnection: close\r\n{head}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", port), timeout=20) as sock:
        try:
            sock.sendall(lines.encode() + body)
            if hang_up:
                sock.shutdown(socket.SHUT_WR)
        except BrokenPipeError:
            pass
        answer = b""
        try:
            while data := sock.recv(65536):
                answer += data
        except ConnectionResetError:
            pass
    return (int(answer[9:12]), answer.decode(errors="replace")) if answer else (0, "")


def chunked(*parts: bytes) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


CHANGE = b'{"public_scoreboard":true}'


def scoreboard(service: Service) -> bool:
    headers = {"Authorization": f"Bearer {service.token()}"}
    return bool(service.get("/api/v1/settings", headers=headers).json()["public_scoreboard"])


def test_a_chunked_body_is_read_and_limited(service: Service) -> None:
    assert exchange(service, "Transfer-Encoding: chunked", chunked(b'{"signup_', b'open": true}'))[0] == 200
    filler = [b" " * 65536] * 40
    status, said = exchange(service, "Transfer-Encoding: chunked", chunked(CHANGE, *filler, b"garbage"))
    assert status == 413, said
    assert "application/problem+json" in said
    assert scoreboard(service) is False


def test_a_body_that_is_cut_off_changes_nothing(service: Service) -> None:
    status, said = exchange(service, "Content-Length: 500", CHANGE, hang_up=True)
    assert status in {0, 400}, said
    assert scoreboard(service) is False


def test_ten_mebibytes_are_413(service: Service) -> None:
    size = 10 * 1024 * 1024
    status, said = exchange(service, f"Content-Length: {size}", CHANGE + b" " * (size - len(CHANGE)))
    assert status in {0, 413}, said  # the server may hang up on us before we have read its answer
    assert scoreboard(service) is False


def test_a_long_address_is_refused_at_once_and_without_credentials(service: Service) -> None:
    for path in ("/" + "eyJ-" * 16_000, "/" + "%65yJ-" * 9_000, "/?" + "a" * 20_000):
        began = time.monotonic()
        answer = service.get(path)
        assert time.monotonic() - began < 4
        assert (answer.status_code, answer.headers["Content-Type"]) == (414, "application/problem+json")
        assert answer.json()["code"] == "too_large"
