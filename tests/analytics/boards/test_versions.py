"""Versions: never the same twice, and those of the numbers that are committed."""

import contextlib
from datetime import timedelta

from sqlalchemy import select

from analytics.boards import versions
from analytics.boards.names import ALL_TENANTS, GLOBAL, Board, Version
from analytics.boards.versions import BoardRow
from analytics.metrics import LIKES, VIEWS
from analytics.windows import Window
from tenants.db import owner_tx, platform_tx, tenant_tx, utcnow

NOW = utcnow()


def test_a_reserved_version_is_read_when_it_is_confirmed(tenant: str, other_tenant: str) -> None:
    first, second = (Board(tenant, "tenant", Window.WEEK, metric) for metric in (VIEWS, LIKES))
    with tenant_tx(tenant) as tx:
        assert versions.read(tx, [first], now=NOW) == {first: Version(0, NOW)}
    assert versions.reserve(tenant, [first, second], now=NOW) == {first: Version(1, NOW), second: Version(1, NOW)}
    reserved = versions.reserve(tenant, [first], now=NOW)
    assert reserved == {first: Version(2, NOW)}, "the first was never published, and is not reserved again"
    with tenant_tx(tenant) as tx:
        assert versions.read(tx, [first], now=NOW)[first].number == 0
        versions.confirm(tx, reserved)
        assert versions.read(tx, [first, second], now=NOW) == {first: Version(2, NOW), second: Version(0, NOW)}
    with tenant_tx(other_tenant) as tx:
        own = Board(other_tenant, "tenant", Window.WEEK, VIEWS)
        assert versions.read(tx, [own], now=NOW)[own].number == 0


def test_global_boards_have_versions_of_their_own(tenant: str) -> None:
    own, shared = Board(tenant, "tenant", Window.DAY, VIEWS), Board(ALL_TENANTS, GLOBAL, Window.DAY, VIEWS)
    with tenant_tx(tenant) as tx:
        before = versions.read(tx, [shared], now=NOW)[shared].number
    reserved = versions.reserve(tenant, [own, shared], now=NOW)
    assert reserved[own].number == 1
    assert reserved[shared].number > before
    with tenant_tx(tenant) as tx:
        versions.confirm(tx, reserved)
    with platform_tx() as tx:
        assert versions.read(tx, [shared], now=NOW)[shared] == reserved[shared]


def test_after_a_restore_versions_are_above_any_that_was_published(tenant: str) -> None:
    board = Board(tenant, "tenant", Window.WEEK, VIEWS)
    later_ms = int(NOW.timestamp() * 1000) + 5_000
    reserved = versions.reserve(tenant, [board], now=NOW)
    with contextlib.suppress(ZeroDivisionError), owner_tx() as tx:
        tx.tenant_id = tenant
        versions.confirm(tx, reserved)
        versions.jump(tx, now=NOW + timedelta(seconds=5))
        versions.jump(tx, now=NOW)
        assert versions.read(tx, [board], now=NOW)[board].number == later_ms
        assert tx.scalar(select(BoardRow.reserved)) == later_ms, "the next one is above it"
        raise ZeroDivisionError  # the versions of every tenant stay as they were
