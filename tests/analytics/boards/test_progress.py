"""The progress of a projection: what is computed again because time passed or a setting changed."""

from datetime import timedelta

import pytest

from analytics import outbox
from analytics.boards import progress
from analytics.boards.progress import Reweighing
from analytics.ingest.writes import EventKind, Item
from analytics.outbox import Kind
from analytics.scoring import Weights
from analytics.windows import HOUR, hour_of
from tenants.db import Tx, tenant_tx, utcnow
from tests.analytics.boards.conftest import save_page_numbers
from tests.analytics.conftest import put_page, write_events

NOW = utcnow()


@pytest.fixture
def pages(tenant: str) -> list[int]:
    """Three public pages with numbers, of which the second is shared."""
    ids = [put_page(tenant, name, visibility="public") for name in "abc"]
    for place, page_id in enumerate(ids):
        save_page_numbers(tenant, page_id, shared=place == 1, views_all=1)
    return ids


def stale(tx: Tx) -> list[str]:
    """The members that were marked since the last call."""
    rows = tx.run(*outbox.oldest(tx.tenant, Kind.PAGE, limit=100))
    outbox.delete(tx, Kind.PAGE, [row.id for row in rows])
    return [row.member for row in rows]


def test_progress_begins_at_the_present_hour_and_is_kept(tenant: str) -> None:
    with tenant_tx(tenant) as tx:
        projection, is_new = progress.get_or_create(tx, now=NOW)
        assert (projection.slid_to, is_new) == (hour_of(NOW), True)
    with tenant_tx(tenant) as tx:
        again, is_new = progress.get_or_create(tx, now=NOW + timedelta(days=1))
        assert (again.slid_to, is_new) == (hour_of(NOW), False)


def test_a_page_is_stale_when_its_views_leave_a_window(tenant: str) -> None:
    page_id = put_page(tenant, "home")
    write_events(tenant, Item(EventKind.VIEW, "home", NOW))
    with tenant_tx(tenant) as tx:
        projection, _ = progress.get_or_create(tx, now=NOW)
        stale(tx)
        for hours, expected in ((0, []), (23, []), (24, [str(page_id)]), (24, []), (40, [])):
            assert progress.slide(tx, projection, now=NOW + hours * HOUR) is False
            assert stale(tx) == expected, hours


def test_after_a_long_stop_time_passes_in_bounded_steps(tenant: str) -> None:
    later = NOW + timedelta(hours=2.5 * progress.MAX_HOURS_PER_STEP)
    with tenant_tx(tenant) as tx:
        projection, _ = progress.get_or_create(tx, now=NOW)
        assert [progress.slide(tx, projection, now=later) for _ in range(4)] == [True, True, False, False]
        assert projection.slid_to == hour_of(later)


def test_new_weights_reach_every_page_in_bounded_steps(
    tenant: str, pages: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "MAX_PAGES_PER_STEP", 2)
    weights = Weights(version=1)
    with tenant_tx(tenant) as tx:
        projection, _ = progress.get_or_create(tx, now=NOW)
        assert progress.to_reweigh(tx, projection, Weights(version=0)) == Reweighing([], 0, None)
        steps = []
        for expected, to in ((pages[:2], pages[1]), (pages[2:], None), ([], None)):
            for _ in range(2):  # what was not saved is found again
                reweighing = progress.to_reweigh(tx, projection, weights)
                assert reweighing == Reweighing(expected, 1, to)
            reweighing.save(tx)
            tx.refresh(projection)
            steps.append(progress.reweighing(tx, weights))
        assert steps == [(2, 3), (3, 3), (3, 3)]


def test_newer_weights_begin_with_the_first_page_again(
    tenant: str, pages: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "MAX_PAGES_PER_STEP", 2)
    with tenant_tx(tenant) as tx:
        projection, _ = progress.get_or_create(tx, now=NOW)
        for version in (1, 2):
            reweighing = progress.to_reweigh(tx, projection, Weights(version=version))
            assert reweighing == Reweighing(pages[:2], version, pages[1])
            reweighing.save(tx)
            tx.refresh(projection)


def test_pages_whose_sharing_differs_from_the_setting_are_found(
    tenant: str, pages: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    with tenant_tx(tenant) as tx:
        assert progress.to_reshare(tx, shared=False) == ([pages[1]], False)
        assert progress.to_reshare(tx, shared=True) == ([pages[0], pages[2]], False)
        monkeypatch.setattr(progress, "MAX_PAGES_PER_STEP", 1)
        assert progress.to_reshare(tx, shared=True) == ([pages[0]], True)
