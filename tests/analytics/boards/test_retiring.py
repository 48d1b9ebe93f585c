"""A deleted tenant leaves the global boards and Redis, in steps, and nobody waits for Redis meanwhile."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import text

from analytics.boards import checking, projection, rebuilding, redis_store, retiring, versions
from analytics.boards.names import ALL_TENANTS, GLOBAL, Board, board_of, boards_in
from analytics.ingest.writes import EventKind, Item
from analytics.locks import try_lock_boards
from analytics.metrics import VIEWS
from analytics.windows import Window
from tenants import redis as tenants_redis
from tenants import registry
from tenants import settings as tenant_settings
from tenants.db import current_tx, owner_tx, tenant_tx, utcnow
from tenants.redis import RedisUnavailable
from tests.analytics.conftest import put_page, write_events

PAGES = 7
BOARD = board_of("any", GLOBAL, Window.ALL, VIEWS.name)


def publish(tenant: str) -> list[int]:
    """Public pages with views, shared with the global boards."""
    with tenant_tx(tenant) as tx:
        tenant_settings.change(tx, {"share_public_pages": True}, now=utcnow())
    page_ids = [put_page(tenant, f"p{number}", visibility="public") for number in range(PAGES)]
    write_events(tenant, *(Item(EventKind.VIEW, f"p{number}", utcnow()) for number in range(PAGES)))
    projection.project_all(tenant, now=utcnow)
    return page_ids


@pytest.fixture
def shared(tenant: str, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The ids of a tenant's pages on the global boards. Two leave in each step."""
    rebuilding.rebuild_global(now=utcnow(), only_missing=False)
    monkeypatch.setattr(retiring, "MAX_PAGES_PER_STEP", 2)
    page_ids = publish(tenant)
    assert shown(page_ids) == PAGES
    with owner_tx() as tx:
        registry.mark_deleted(tx, tenant, now=utcnow())
    return page_ids


def shown(page_ids: Sequence[int]) -> int:
    """How many of these pages are on a global board."""
    values: Any = tenants_redis.boards().redis.zmscore(BOARD.key, [str(page_id) for page_id in page_ids])
    return sum(value is not None for value in values)


def keys_of(tenant: str) -> list[Any]:
    """The keys of boards and summaries. (Others are short-lived.)"""
    redis = tenants_redis.boards().redis
    return [key for kind in ("lb", "lbv:{lb", "lbu:{lb", "lbr", "pgs") for key in redis.scan_iter(f"{kind}:{tenant}*")]


def test_pages_leave_in_steps_and_then_every_key(shared: list[int], tenant: str, other_tenant: str) -> None:
    others = publish(other_tenant)
    told: list[int] = []
    assert retiring.count(tenant) == PAGES
    done = retiring.retire(tenant, now=utcnow(), watch=told.append)
    assert (done.pages, done.more, told) == (PAGES, False, [2, 4, 6, 7])
    assert done.keys > 16
    assert (shown(shared), shown(others), keys_of(tenant)) == (0, PAGES, [])
    assert checking.check(other_tenant, now=utcnow()).differences == []
    assert retiring.retire(tenant, now=utcnow()) == retiring.Retired(), "a second run finds nothing to do"


def test_pages_that_take_long_to_count_leave_all_the_same(
    shared: list[int], tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retiring, "MAX_COUNT_MS", 200)
    with owner_tx() as tx, ThreadPoolExecutor(1) as another:
        tx.execute(text("LOCK TABLE page_stats IN ACCESS EXCLUSIVE MODE"))  # as long as many rows take
        assert another.submit(retiring.count, tenant).result() is None
    assert retiring.retire(tenant, now=utcnow()).pages == PAGES


def test_nobody_waits_while_redis_is_written(
    shared: list[int], tenant: str, other_tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = dict.fromkeys(("remove", "delete_tenant", "publish"), 0)

    def watched(name: str) -> Callable[..., Any]:
        called = getattr(redis_store, name)

        def call(*arguments: Any) -> Any:
            calls[name] += 1
            assert current_tx() is None
            with tenant_tx(other_tenant) as tx:
                try_lock_boards(tx, ALL_TENANTS)
            return called(*arguments)

        return call

    for name in calls:
        monkeypatch.setattr(redis_store, name, watched(name))
    retiring.retire(tenant, now=utcnow())
    assert min(calls.values()) >= 1


@pytest.fixture
def dying(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The process dies before Redis is written, every second time."""
    remove, tries = redis_store.remove, list[str]()

    def die(*arguments: Any) -> list[Board]:
        tries.append("")
        if len(tries) % 2:
            raise KeyboardInterrupt
        return remove(*arguments)

    monkeypatch.setattr(redis_store, "remove", die)
    yield
    assert len(tries) > 3


@pytest.mark.usefixtures("dying")
def test_whoever_continues_finds_what_redis_still_has(shared: list[int], tenant: str) -> None:
    for _ in range(2 * PAGES):
        try:
            retiring.retire(tenant, now=utcnow())
            break
        except KeyboardInterrupt:
            assert shown(shared) > 0
    assert (shown(shared), keys_of(tenant)) == (0, [])


def test_a_board_that_another_process_has_written_meanwhile_gets_a_newer_version(
    shared: list[int], tenant: str, other_tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove, late = redis_store.remove, list[Board]()

    def write_before(client: Any, members: Any, raised: Any) -> list[Board]:
        if not late:
            publish(other_tenant)  # with versions that are newer than ours
        seen = {board: redis_store.published_version(client, board) for board in raised}
        newer = remove(client, members, raised)
        late.extend(newer)
        for board in raised:
            version = redis_store.published_version(client, board)
            assert (version == seen[board]) if board in newer else (version > seen[board])
        return newer

    monkeypatch.setattr(redis_store, "remove", write_before)
    retiring.retire(tenant, now=utcnow())
    assert late
    assert shown(shared) == 0
    with tenant_tx(other_tenant) as tx:
        current = versions.read(tx, boards_in(other_tenant, GLOBAL), now=utcnow())
    client = tenants_redis.boards().redis
    assert {board: redis_store.published_version(client, board) for board in current} == {
        board: version.number for board, version in current.items()
    }


def test_a_rebuild_of_the_global_boards_meanwhile_brings_nobody_back(
    shared: list[int], tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rebuild(_pages: int) -> None:
        rebuilding.rebuild_global(now=utcnow(), only_missing=False)

    retiring.retire(tenant, now=utcnow(), watch=rebuild)
    assert shown(shared) == 0


def test_without_redis_the_pages_stay_known(shared: list[int], tenant: str) -> None:
    with tenant_tx(tenant) as tx:
        tx.execute(text("SELECT 1"))
    configured = tenants_redis._clients
    nowhere = "redis://127.0.0.1:1/0"
    tenants_redis.configure(boards_url=nowhere, queue_url=nowhere)
    with pytest.raises(RedisUnavailable):
        retiring.retire(tenant, now=utcnow())
    tenants_redis._clients = configured
    assert (retiring.count(tenant), shown(shared)) == (PAGES, PAGES)
    retiring.retire(tenant, now=utcnow())
    assert shown(shared) == 0
