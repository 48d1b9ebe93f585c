"""P3, in small: a Redis that is away or hangs costs a caller next to nothing, and is logged once."""

import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

import pytest

from app.run import data_folder
from app.run.local_servers import LocalServers, Server
from app.settings import Settings
from tenants.redis import (
    PROBE_EVERY_S,
    Guarded,
    Outage,
    RedisUnavailable,
    boards,
    configure,
    make_client,
    queue,
)
from tests.conftest import reachable_folder
from tests.service import eventually


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


def test_an_outage_is_one_critical_line_whichever_clients_notice_it_and_its_end_one_info_line(
    logged: Callable[[], list[dict[str, Any]]],
) -> None:
    def use_all() -> bool:
        with suppress(RedisUnavailable):
            boards().read(("ECHO", "a"))
        return [boards().is_up(), queue().is_up()] == [True, True]

    with own_valkey() as (server, url):
        process = server.start(stdout=subprocess.DEVNULL)
        configure(boards_url=url, queue_url=url)
        eventually(lambda: make_client(url).ping())
        assert use_all()
        process.kill()
        process.wait()
        until = time.monotonic() + 1.5 * PROBE_EVERY_S  # so that each client tries again once
        while time.monotonic() < until:
            assert not use_all()
            time.sleep(0.02)
        process = server.start(stdout=subprocess.DEVNULL)
        eventually(use_all)
        eventually(lambda: use_all() and len(logged()) > 1)
        lines = logged()  # before it ends for good
        server.stop(process)
    assert [(line["level"], line["action"]) for line in lines] == [
        ("critical", "redis.outage"),
        ("info", "redis.recovered"),
    ]
    assert lines[1]["data"]["outage_s"] > 1
    address = urlsplit(url)
    assert [line["data"]["server"] for line in lines] == [f"{address.hostname}:{address.port}"] * 2


def test_an_outage_of_two_servers_ends_when_both_have_worked_again(logged: Callable[[], list[dict[str, Any]]]) -> None:
    outage, error = Outage(), ConnectionError()
    for server, client, now in (("a", "boards", 10.0), ("b", "queue", 11.0), ("a", "boards", 12.0)):
        outage.failed(server, error, client=client, now=now)
    outage.worked("a", now=12.1)  # answered before the server failed
    outage.worked("b", now=14.0)
    assert outage.is_on
    outage.worked("a", now=15.0)
    outage.worked("b", now=16.0)
    assert [(line["level"], line["data"]) for line in logged()] == [
        ("critical", {"redis": "boards", "server": "a", "error": "ConnectionError"}),
        ("info", {"server": "a, b", "outage_s": 5.0}),
    ]
    outage.failed("b", error, client="queue", now=20.0)
    assert [line["level"] for line in logged()][2:] == ["critical"], "another outage"


@contextmanager
def own_valkey() -> Iterator[tuple[Server, str]]:
    """A server that a test may stop and start, not started yet; and its address."""
    with reachable_folder() as folder, data_folder.lock_servers(data_folder.prepare(folder), "command") as lock:
        servers = LocalServers(folder, lock)
        yield servers.valkey(), servers.addresses.redis_url


def test_a_broken_call_of_ours_is_not_an_outage(settings: Settings) -> None:
    guarded = Guarded("test", make_client(settings.queue_redis_url or "", timeout_s=2))
    with pytest.raises(ZeroDivisionError), guarded.client():
        _ = 1 / 0
    assert guarded.is_up()


def test_reads_are_answered_in_order_on_connections_that_are_used_again(settings: Settings) -> None:
    guarded = Guarded("test", make_client(settings.queue_redis_url or "", timeout_s=2))
    for round_ in range(3):
        assert guarded.read(("ECHO", f"a{round_}"), ("ECHO", "b")) == [f"a{round_}".encode(), b"b"]
    assert len(guarded._idle) == 1


def test_a_read_on_a_connection_that_the_server_closed_is_sent_again(
    settings: Settings, logged: Callable[[], list[dict[str, Any]]]
) -> None:
    guarded = Guarded("test", make_client(settings.queue_redis_url or "", timeout_s=2))
    number = guarded.read(("CLIENT", "ID"))[0]
    guarded.redis.client_kill_filter(_id=number)
    assert guarded.read(("ECHO", "a")) == [b"a"]
    assert guarded.read(("CLIENT", "ID"))[0] != number
    assert logged() == [], "no outage"


def test_a_read_that_fails_opens_the_breaker_and_leaves_no_answer_for_the_next(settings: Settings) -> None:
    guarded = Guarded("test", make_client(settings.queue_redis_url or "", timeout_s=2))
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
