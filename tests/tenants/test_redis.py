"""P3, in small: a Redis that is away or hangs costs a caller next to nothing, and is logged once."""

import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from app.settings import Settings
from tenants.redis import Guarded, RedisUnavailable, key, make_client


@pytest.fixture
def hung_port() -> Iterator[int]:
    """A port that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def try_once(guarded: Guarded) -> None:
    with guarded.client() as redis:
        redis.ping()


def test_a_hung_redis_costs_less_than_half_a_second_and_then_nothing(hung_port: int) -> None:
    guarded = Guarded("test", make_client(f"redis://127.0.0.1:{hung_port}/0"))
    began = time.monotonic()
    with pytest.raises(RedisUnavailable):
        try_once(guarded)
    assert time.monotonic() - began < 0.5
    began = time.monotonic()
    for _ in range(1000):
        with pytest.raises(RedisUnavailable):
            try_once(guarded)
    assert time.monotonic() - began < 0.5, "an open breaker asks nobody"


def test_an_outage_is_logged_as_critical_once_and_its_end_once(
    hung_port: int, settings: Settings, logged: Callable[[], list[dict[str, Any]]]
) -> None:
    guarded = Guarded("test", make_client(f"redis://127.0.0.1:{hung_port}/0"))
    for _ in range(50):
        assert not guarded.is_up()
    guarded.redis = make_client(settings.redis_url or "", timeout_s=2)
    guarded._next_probe_at = 0
    for _ in range(50):
        assert guarded.is_up()
    assert [line["level"] for line in logged()] == ["critical", "warning"]


def test_a_broken_call_of_ours_is_not_an_outage(settings: Settings) -> None:
    guarded = Guarded("test", make_client(settings.redis_url or "", timeout_s=2))
    with pytest.raises(ZeroDivisionError), guarded.client():
        _ = 1 / 0
    assert guarded.is_up()


def test_reads_are_answered_in_order_on_connections_that_are_used_again(settings: Settings) -> None:
    guarded = Guarded("test", make_client(settings.redis_url or "", timeout_s=2))
    for round_ in range(3):
        assert guarded.read(("ECHO", f"a{round_}"), ("ECHO", "b")) == [f"a{round_}".encode(), b"b"]
    assert len(guarded._idle) == 1


def test_a_read_on_a_connection_that_the_server_closed_is_sent_again(
    settings: Settings, logged: Callable[[], list[dict[str, Any]]]
) -> None:
    guarded = Guarded("test", make_client(settings.redis_url or "", timeout_s=2))
    number = guarded.read(("CLIENT", "ID"))[0]
    guarded.redis.client_kill_filter(_id=number)
    assert guarded.read(("ECHO", "a")) == [b"a"]
    assert guarded.read(("CLIENT", "ID"))[0] != number
    assert logged() == [], "no outage"


def test_a_read_that_fails_opens_the_breaker_and_leaves_no_answer_for_the_next(settings: Settings) -> None:
    guarded = Guarded("test", make_client(settings.redis_url or "", timeout_s=2))
    with pytest.raises(RedisUnavailable):
        guarded.read(("NO-SUCH-COMMAND",), ("ECHO", "left over"))
    with pytest.raises(RedisUnavailable):
        guarded.read(("ECHO", "refused"))
    guarded._next_probe_at = 0
    assert guarded.read(("ECHO", "mine")) == [b"mine"]


def test_a_read_from_a_hung_redis_costs_less_than_half_a_second(hung_port: int) -> None:
    guarded = Guarded("test", make_client(f"redis://127.0.0.1:{hung_port}/0"))
    began = time.monotonic()
    with pytest.raises(RedisUnavailable):
        guarded.read(("ECHO", "a"))
    assert time.monotonic() - began < 0.5


def test_keys_name_their_tenant() -> None:
    assert key("lb", "demo", "tenant", "7d", "likes") == "lb:demo:tenant:7d:likes"
    assert key("lb", "_all", "global") == "lb:_all:global"
    for hostile in ("a:b", "", "Demo"):
        with pytest.raises(ValueError, match="not a tenant id"):
            key("lb", hostile)
