"""The table of operations: every entry can be sent, measured and compared."""

from dataclasses import replace
from typing import Any, cast

import orjson
import pytest

from loadtests import operations
from loadtests.dataset import TenantSize
from loadtests.operations import BY_NAME, OPERATIONS, Operation, boards
from loadtests.pools import NUMBER, UNIQUE
from loadtests.target import Target

# What the issue "Speed" asks for at least, and its aim.
MUST_SHOW = {
    "top10": (2, 3.5),
    "top10-busy": (1, 2),
    "rank-few": (1.5, 2.5),
    "rank-many": (0.4, 0.6),
    "view": (0.35, 0.5),
    "like": (0.25, 0.4),
    "like-hot": (0.2, 0.4),
    "action": (0.15, 0.25),
    "views": (0.6, 0.8),
}


class FakeTarget:
    tenant = TenantSize("bench", 200, 300)
    measurement = 3

    def client_token(self) -> str:
        return "client-token"

    def user_tokens(self) -> list[str]:
        return ["user-1", "user-2"]


def target() -> Target:
    return cast("Target", FakeTarget())


def body_of(request: bytes) -> Any:
    return orjson.loads(request.partition(b"\r\n\r\n")[2])


def test_names_are_unique_and_the_aims_are_those_asked_for() -> None:
    assert len(BY_NAME) == len(OPERATIONS)
    assert {name: (op.at_least, op.aim) for name, op in BY_NAME.items() if op.at_least is not None} == MUST_SHOW


@pytest.mark.parametrize("operation", [op for op in OPERATIONS if op.name != "etag"], ids=lambda op: op.name)
def test_every_request_is_authenticated_and_whole(operation: Operation) -> None:
    pool = operation.pool(target())
    assert pool.requests
    for request in pool.requests:
        head, _, body = request.partition(b"\r\n\r\n")
        assert b"Authorization: Bearer " in head
        if body:
            assert f"Content-Length: {len(body)}".encode() in head
        if operation.events > 1:
            assert len(orjson.loads(body)["events"]) == operation.events


def test_twelve_boards_are_read_in_turn() -> None:
    assert len({*boards()}) == 12
    assert len(operations.top(target()).requests) == 12


def test_every_action_and_view_has_an_id_of_its_own() -> None:
    action = body_of(operations.actions(target()).requests[0])
    assert action["actionId"].endswith(f"-{UNIQUE}")
    assert len(action["actionId"]) == 36
    batch = body_of(operations.view_batches(target(), with_ids=True).requests[0])["events"]
    assert len({event["id"] for event in batch}) == 100
    assert all(UNIQUE in event["id"] for event in batch)
    other = body_of(operations.view_batches(target(), with_ids=True).requests[0])["events"]
    assert {event["id"] for event in batch}.isdisjoint(event["id"] for event in other)
    plain = body_of(operations.view_batches(target(), with_ids=False).requests[0])["events"]
    assert all(event.keys() == {"type", "page"} for event in plain)


def test_no_like_comes_twice() -> None:
    """In several measurements, of the size of the full data set."""
    seen: set[bytes] = set()
    for measurement in range(3):
        full = cast("Any", FakeTarget())
        full.tenant, full.measurement = replace(FakeTarget.tenant, pages=100_000, users=100_000), measurement
        pool = operations.likes(full)
        assert NUMBER.encode() in pool.requests[0]
        seen |= {pool.render(0, 1, number).split()[1] for number in range(20_000)}
    assert len(seen) == 60_000


def test_popular_pages_exist() -> None:
    pages = [operations.popular_page(50) for _ in range(2_000)]
    assert {*pages} <= {f"p{number:06d}" for number in range(50)}
    assert pages.count("p000000") > 10 * pages.count("p000049")
