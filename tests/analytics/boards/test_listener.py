"""The listener: receives what is announced, and says when messages may have been lost."""

from collections.abc import Iterator
from typing import Any

import pytest

from analytics.boards import redis_store
from analytics.boards.listener import Listener
from analytics.boards.names import Board, Version
from analytics.metrics import VIEWS
from analytics.windows import Window
from tenants import redis as tenants_redis
from tenants.db import utcnow
from tests.service import eventually


class Received:
    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.missed = 0

    def miss(self) -> None:
        self.missed += 1


@pytest.fixture
def received() -> Received:
    return Received()


@pytest.fixture
def listener(received: Received, connected: None) -> Iterator[Listener]:
    """One that is connected."""
    listener = Listener({redis_store.CHANNEL: received.messages.append}, missed=received.miss)
    listener.start()
    eventually(lambda: listener.is_connected)
    yield listener
    listener.stop()


def publish(tenant: str, number: int) -> None:
    board = Board(tenant, "tenant", Window.WEEK, VIEWS)
    redis_store.publish(tenants_redis.boards().redis, {board: Version(number, utcnow())})


def own(received: Received, tenant: str) -> list[dict[str, int]]:
    return [message["versions"] for message in received.messages if message["tenant"] == tenant]


def test_announced_versions_are_received_in_order(listener: Listener, received: Received, tenant: str) -> None:
    assert received.missed >= 1, "messages before the connection"
    for number in (1, 2):
        publish(tenant, number)
    eventually(lambda: own(received, tenant) == [{"tenant:7d:views": 1}, {"tenant:7d:views": 2}])


def test_after_a_lost_connection_messages_may_be_missed_and_the_next_is_received(
    listener: Listener, received: Received, tenant: str
) -> None:
    tenants_redis.on_every_server(tenants_redis.boards().redis, "CLIENT KILL", "TYPE", "pubsub")
    eventually(lambda: received.missed >= 2)
    publish(tenant, 3)
    eventually(lambda: own(received, tenant) == [{"tenant:7d:views": 3}])


def test_a_handler_that_fails_is_logged_and_not_the_end(tenant: str, received: Received, logged: Any) -> None:
    def fail_once(message: dict[str, Any]) -> None:
        received.messages.append(message)
        if len(own(received, tenant)) == 1:
            raise ZeroDivisionError

    listener = Listener({redis_store.CHANNEL: fail_once}, missed=received.miss)
    listener.start()
    listener.start()  # one thread only
    eventually(lambda: listener.is_connected)
    publish(tenant, 1)
    eventually(lambda: received.missed >= 2)
    publish(tenant, 2)
    eventually(lambda: own(received, tenant) == [{"tenant:7d:views": 1}, {"tenant:7d:views": 2}])
    listener.stop()
    assert [line["action"] for line in logged() if line["level"] == "error"] == ["invalidations.failed"]
