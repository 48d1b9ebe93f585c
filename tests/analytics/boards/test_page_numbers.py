"""Page numbers: what was counted, over each window, beside what is saved."""

from datetime import timedelta

import pytest
from sqlalchemy import text

from analytics import outbox
from analytics.boards import page_numbers
from analytics.boards.page_numbers import COLUMNS, PageChange
from analytics.ingest.writes import EventKind, Item
from analytics.outbox import Kind
from analytics.scoring import Weights, score
from tenants.db import Tx, tenant_tx, utcnow
from tests.analytics.conftest import put_page, write_events

NOW = utcnow()


@pytest.fixture
def page(tenant: str) -> int:
    """A page with views now, and three and ten days ago, and a like three days ago."""
    page_id = put_page(tenant, "home", visibility="public")
    ago = [NOW - timedelta(days=days) for days in (0, 3, 10)]
    write_events(
        tenant, *(Item(EventKind.VIEW, "home", at) for at in ago), Item(EventKind.LIKE, "home", ago[1], user="ada")
    )
    return page_id


def compute(
    tx: Tx, *page_ids: int, shared: bool = False, weights: Weights | None = None, add: bool = False
) -> list[PageChange]:
    return page_numbers.compute(tx, page_ids, now=NOW, weights=weights or Weights(), shared=shared, add=add)


def test_each_window_has_its_counts_and_the_score_of_them(tenant: str, page: int) -> None:
    weights = Weights(likes=2, views=10)
    with tenant_tx(tenant) as tx:
        (change,) = compute(tx, page, weights=weights)
    assert change.before is None
    assert change.now is not None
    values = dict(zip(COLUMNS, change.now.values, strict=True))
    windows = ("1d", "7d", "30d", "all")
    assert [values[f"views_{window}"] for window in windows] == [1, 2, 3, 3]
    assert [values[f"likes_{window}"] for window in windows] == [0, 1, 1, 1]
    assert values["score_7d"] == score(weights, likes=1, views=2)


def test_a_page_is_shared_if_it_is_public_and_the_tenant_shares(tenant: str, page: int) -> None:
    private = put_page(tenant, "private")
    write_events(tenant, Item(EventKind.VIEW, "private", NOW))
    with tenant_tx(tenant) as tx:
        for shared, expected in ((True, [True, False]), (False, [False, False])):
            found = compute(tx, page, private, shared=shared)
            assert [change.now.is_shared for change in found if change.now is not None] == expected


def test_saved_numbers_are_those_before_until_they_differ(tenant: str, page: int) -> None:
    with tenant_tx(tenant) as tx:
        first = compute(tx, page)
        page_numbers.save(tx, first, now=NOW)
        page_numbers.save(tx, compute(tx, page), now=NOW + timedelta(hours=1))
        (second,) = compute(tx, page)
        assert second.before == second.now == first[0].now
        assert tx.scalar(text("SELECT computed_at FROM page_stats")) == NOW, "what is equal is not written"


def test_a_page_without_counts_or_that_was_deleted_is_on_no_board(tenant: str, page: int) -> None:
    idle = put_page(tenant, "idle")
    with tenant_tx(tenant) as tx:
        page_numbers.save(tx, compute(tx, page, idle), now=NOW)
        assert list(tx.scalars(text("SELECT page_id FROM page_stats"))) == [page], "zeros are not worth a row"
        tx.execute(text("DELETE FROM pages WHERE id = :page"), {"page": page})
        (change,) = compute(tx, page)
        assert (change.now, change.summary, change.before is None) == (None, None, False)
        page_numbers.save(tx, [change], now=NOW)
        assert list(tx.scalars(text("SELECT page_id FROM page_stats"))) == []


YESTERDAY, LAST_WEEK = NOW - timedelta(hours=23), NOW - timedelta(hours=24)
VIEW, LIKE, UNLIKE = EventKind.VIEW, EventKind.LIKE, EventKind.UNLIKE


@pytest.mark.parametrize(
    ("items", "is_added"),
    [
        ([Item(VIEW, "home", NOW)], True),
        ([Item(VIEW, "home", YESTERDAY)], True),
        ([Item(LIKE, "home", NOW, user="eve")], True),
        ([Item(LIKE, "home", NOW, user="eve"), Item(UNLIKE, "home", NOW, user="eve")], True),
        ([Item(VIEW, "home", LAST_WEEK)], False),
        ([Item(VIEW, "home", NOW), Item(VIEW, "home", LAST_WEEK)], False),
        ([Item(VIEW, "home", NOW + timedelta(hours=1))], False),
        ([Item(LIKE, "home", LAST_WEEK, user="eve")], False),
        # The like of three days ago leaves two windows, and not the third.
        ([Item(UNLIKE, "home", NOW, user="ada")], False),
        # Liked since three days ago, now since today.
        ([Item(UNLIKE, "home", NOW, user="ada"), Item(LIKE, "home", NOW, user="ada")], False),
    ],
)
def test_what_is_in_every_window_is_added_and_everything_else_is_counted(
    tenant: str, page: int, items: list[Item], is_added: bool
) -> None:
    with tenant_tx(tenant) as tx:
        page_numbers.save(tx, compute(tx, page), now=NOW)
        tx.execute(text("DELETE FROM outbox"))
        # Visible in what is made of the saved numbers only.
        tx.execute(text("UPDATE page_stats SET views_7d = views_7d + 100"))
    write_events(tenant, *items)
    with tenant_tx(tenant) as tx:
        (counted,), (added,) = compute(tx, page), compute(tx, page, add=True)
        assert counted.now is not None
        assert added.now is not None
        place = COLUMNS.index("views_7d")
        assert added.now.values[place] - counted.now.values[place] == (100 if is_added else 0)
        others = [number for number, name in enumerate(COLUMNS) if name not in {"views_7d", "score_7d"}]
        assert [added.now.values[n] for n in others] == [counted.now.values[n] for n in others]


def test_a_change_that_says_no_hour_is_counted_also_beside_one_that_does(tenant: str, page: int) -> None:
    with tenant_tx(tenant) as tx:
        page_numbers.save(tx, compute(tx, page), now=NOW)
        tx.execute(text("DELETE FROM outbox"))
        tx.execute(text("UPDATE page_stats SET views_7d = 77"))
    write_events(tenant, Item(VIEW, "home", NOW))
    with tenant_tx(tenant) as tx:
        outbox.mark_stale(tx, Kind.PAGE, [page])
        (change,) = compute(tx, page, add=True)
        assert change.now is not None
        assert change.now.values[COLUMNS.index("views_7d")] == 3
