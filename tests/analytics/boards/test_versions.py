"""Versions: never the same twice, and those of the numbers that are committed."""

import contextlib

from analytics.boards import versions
from analytics.boards.names import ALL_TENANTS, GLOBAL, Board, Version
from analytics.metrics import LIKES, VIEWS
from analytics.windows import Window
from tenants.db import owner_tx, platform_tx, tenant_tx, utcnow

NOW = utcnow()


def test_a_version_is_above_every_earlier_one_also_of_a_transaction_that_was_lost(
    tenant: str, other_tenant: str
) -> None:
    first, second = (Board(tenant, "tenant", Window.WEEK, metric) for metric in (VIEWS, LIKES))
    numbers = []
    for is_lost in (False, True, True, False):
        with contextlib.suppress(ZeroDivisionError), tenant_tx(tenant) as tx:
            numbers.append(versions.advance(tx, [first], now=NOW, by=3)[first].number - 2)
            numbers.append(numbers[-1] + 2)
            if is_lost:
                raise ZeroDivisionError
    assert sorted(set(numbers)) == numbers, "also the numbers in between are new"
    with tenant_tx(tenant) as tx:
        newest = Version(numbers[-1], NOW)
        assert versions.read(tx, [first, second], now=NOW) == {first: newest, second: Version(0, NOW)}
    with tenant_tx(other_tenant) as tx:
        own = Board(other_tenant, "tenant", Window.WEEK, VIEWS)
        assert versions.read(tx, [own], now=NOW)[own].number == 0


def test_a_version_that_is_ahead_of_the_clock_goes_on_by_one(tenant: str) -> None:
    board = Board(tenant, "tenant", Window.WEEK, VIEWS)
    with tenant_tx(tenant) as tx:
        versions.advance(tx, [board], now=NOW)
        row = tx.get_one(versions.BoardRow, (tenant, "tenant", "7d", "views"))
        row.reserved = ahead = row.version + 10**12  # reserved by a process of the release before
        tx.flush()
        assert versions.advance(tx, [board], now=NOW)[board].number == ahead + 1


def test_global_boards_have_versions_of_their_own(tenant: str) -> None:
    own, shared = Board(tenant, "tenant", Window.DAY, VIEWS), Board(ALL_TENANTS, GLOBAL, Window.DAY, VIEWS)
    with tenant_tx(tenant) as tx:
        before = versions.read(tx, [shared], now=NOW)[shared].number
        raised = versions.advance(tx, [own, shared], now=NOW)
    assert raised[shared].number > before
    with platform_tx() as tx:
        assert versions.read(tx, [shared], now=NOW)[shared] == raised[shared]
        again = versions.advance(tx, [shared], now=NOW)
    assert again[shared].number > raised[shared].number
    with owner_tx() as tx:
        tx.tenant_id = tenant
        assert versions.read(tx, [own, shared], now=NOW) == {own: raised[own], shared: again[shared]}
