"""While turns of the loop are too long, plain reads beyond a part of each turn are refused unparsed."""

import time
from typing import Any

import pytest

from app.server import overload, turns
from app.server.requests import Request
from app.server.turns import Turns, authorization_of, is_plain_read
from tests.app.server.test_connection import bodies_of, echo, serving
from tests.app.server.test_door import Clock
from tests.service import eventually

READ = b"GET /api/v1/leaderboards?limit=10 HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer one\r\n\r\n"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(turns, "time", made)
    return made


@pytest.fixture
def late(clock: Clock) -> Turns:
    """All turns have been too long for some time."""
    made = Turns(lambda authorization: authorization.removeprefix("Bearer "))
    for _ in range(5):
        began = made.end_receiving()
        clock.now += 2 * turns.LATE_AFTER_S
        if began is not None:
            made.measure(began)
    made.end_receiving()
    return made


def receive(one: Turns, clock: Clock, count: int, seconds: float) -> None:
    for _ in range(count):
        one.receive()
    clock.now += seconds


def test_nothing_is_refused_while_turns_are_short(clock: Clock) -> None:
    one = Turns(str)
    for _ in range(100):
        receive(one, clock, 1_000, turns.LATE_AFTER_S / 2)
        began = one.end_receiving()
        assert not one.is_limited
        if began is not None:
            one.measure(began)


def test_one_long_turn_is_no_overload(clock: Clock) -> None:
    one = Turns(str)
    for length_s in (0.001, 30.0, 0.001):
        began = one.end_receiving()
        clock.now += length_s
        if began is not None:
            one.measure(began)
    one.end_receiving()
    assert not one.is_limited


def test_what_comes_late_in_a_long_turn_is_refused_and_only_that(late: Turns, clock: Clock) -> None:
    assert late.is_limited
    assert not late.refuses(READ), "the first of a turn"
    receive(late, clock, turns.MIN_LIMIT, turns.MAX_PARSING_S / 2)
    assert not late.refuses(READ), "some time is left in this turn"
    clock.now += turns.MAX_PARSING_S
    assert late.refuses(READ)
    assert not late.refuses(READ.replace(b"GET", b"PUT"))
    assert not late.refuses(b"GET /health/ready HTTP/1.1\r\nHost: a\r\n\r\n")
    late.end_receiving()
    receive(late, clock, turns.MIN_LIMIT - 1, 10 * turns.MAX_PARSING_S)
    assert not late.refuses(READ), "few are never refused"


def test_it_ends_some_time_after_the_last_refusal(late: Turns, clock: Clock) -> None:
    for _ in range(5):
        receive(late, clock, turns.MIN_LIMIT, 2 * turns.MAX_PARSING_S)
        assert late.refuses(READ), "turns are short because of the refusals"
        clock.now += overload.CALM_AFTER_S * 0.9
        late.end_receiving()
    clock.now += overload.CALM_AFTER_S
    late.end_receiving()
    assert not late.is_limited


def test_if_one_tenant_has_sent_most_only_its_reads_are_refused(late: Turns, clock: Clock) -> None:
    for authorization in ("Bearer one", "Bearer one", "Bearer two"):
        late.handle(authorization)
    late.end_receiving()
    receive(late, clock, turns.MIN_LIMIT, 2 * turns.MAX_PARSING_S)
    assert late.refuses(READ)
    assert not late.refuses(READ.replace(b"one", b"two"))
    late.end_receiving()
    receive(late, clock, turns.MIN_LIMIT, 2 * turns.MAX_PARSING_S)
    assert late.refuses(READ.replace(b"one", b"two")), "nobody has sent most"


def test_a_plain_read_is_one_whole_get_and_nothing_else() -> None:
    assert is_plain_read(READ)
    for other in (
        READ[:-1],
        READ + b"GET",
        READ + READ,
        READ.replace(b"GET", b"HEAD"),
        READ.replace(b"GET /", b"GET http://a/"),
        READ.replace(b"HTTP/1.1", b"HTTP/1.0"),
        READ.replace(b"Host: a", b"Host: a\r\nconnection: Close"),
        READ.replace(b"Host: a", b"Host: a\r\nCONTENT-LENGTH: 2"),
        READ.replace(b"Host: a", b"Host: a\r\nTransfer-Encoding: chunked"),
        READ.replace(b"Host: a", b"Host: a\r\nUpgrade: websocket"),
        READ.replace(b"Host: a\r\n", b"Host: a\n\n"),
        READ.replace(b"Host: a\r\n", b"Host: a\n\r\n"),
        b"\r\n\r\n",
        b"",
    ):
        assert not is_plain_read(other), other


def test_the_caller_of_a_plain_read_is_found_however_the_header_is_spelled() -> None:
    assert authorization_of(READ) == "Bearer one"
    assert authorization_of(READ.replace(b"Authorization: ", b"AUTHORIZATION:")) == "Bearer one"
    assert authorization_of(READ.replace(b"Authorization", b"X-Authorization")) == ""


def test_a_refused_connection_goes_on_and_the_next_read_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Turns, "refuses", lambda _, data: b"/refused" in data)
    with serving(echo) as served, served.connect() as client:
        served.site.turns.is_limited = True
        monkeypatch.setattr(Turns, "end_receiving", lambda _: None)
        client.sendall(READ.replace(b"/api", b"/refused"))
        refusal = answer_of(client)
        assert refusal.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
        assert b"Retry-After: 1\r\n" in refusal
        assert b'"code":"overloaded"' in refusal
        (connection,) = served.site.connections
        in_a_minute = time.monotonic() + 60
        eventually(lambda: connection.deadline > in_a_minute)  # it may be idle as long as after any answer
        client.sendall(READ)
        assert answer_of(client).startswith(b"HTTP/1.1 200 OK\r\n")
        client.sendall(READ.replace(b"/api", b"/refused") * 2)
        assert answer_of(client)


def test_a_read_behind_one_that_is_being_answered_is_not_refused_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Turns, "refuses", lambda *_: True)
    monkeypatch.setattr(Turns, "end_receiving", lambda _: None)
    waiting: list[Request] = []
    with serving(waiting.append) as served, served.connect() as client:
        client.sendall(b"GET /first HTTP/1.1\r\nHost: a\r\n\r\n")
        eventually(lambda: waiting)
        served.site.turns.is_limited = True
        client.sendall(b"GET /second HTTP/1.1\r\nHost: a\r\n\r\n")
        served.loop.call_soon_threadsafe(echo, waiting[0])
        assert bodies_of(answer_of(client)) == [b"GET /first  "]
        eventually(lambda: len(waiting) == 2)
        served.loop.call_soon_threadsafe(echo, waiting[1])
        assert bodies_of(answer_of(client)) == [b"GET /second  "]


def test_the_loop_measures_its_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[Any] = []
    monkeypatch.setattr(Turns, "measure", lambda _, began: measured.append(began))
    with serving(echo) as served, served.connect() as client:
        client.sendall(READ)
        assert answer_of(client)
        eventually(lambda: measured)


def answer_of(client: Any) -> bytes:
    client.settimeout(60)
    received = b""
    while True:
        head, separator, body = received.partition(b"\r\n\r\n")
        if separator:
            length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
            if len(body) >= length:
                return received
        piece = client.recv(65536)
        assert piece, received
        received += piece
