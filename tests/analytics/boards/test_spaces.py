"""The list of spaces, with the counts of their pages."""

from typing import Any

import pytest

from analytics.boards import spaces
from analytics.metrics import counted_metrics
from tenants.db import tenant_tx
from tests.analytics.boards.conftest import save_page_numbers
from tests.analytics.conftest import put_page


@pytest.fixture(autouse=True)
def pages(tenant: str, other_tenant: str) -> None:
    """Two spaces, one of which has a page without numbers; another tenant has the same spaces."""
    first = put_page(tenant, "a", space="eng", visibility="public")
    second = put_page(tenant, "b", space="eng")
    put_page(tenant, "c", space="ops")
    save_page_numbers(tenant, first, views_7d=4, likes_7d=1, views_all=9)
    save_page_numbers(tenant, second, views_7d=2, views_30d=7)
    save_page_numbers(other_tenant, put_page(other_tenant, "d", space="eng"), views_7d=50)


def listed(tenant: str, *, after: str | None = None, limit: int = 10, public_only: bool = False) -> list[Any]:
    with tenant_tx(tenant) as tx:
        return [dict(row._mapping) for row in spaces.list_(tx, after=after, limit=limit, public_only=public_only)]


def test_a_space_has_the_sums_of_its_pages_over_the_window(tenant: str) -> None:
    assert listed(tenant) == [
        {"space": "eng", "pages": 2, "public_pages": 1, "views_7d": 6, "visitors_7d": 0, "likes_7d": 1},
        {"space": "ops", "pages": 1, "public_pages": 0, "views_7d": 0, "visitors_7d": 0, "likes_7d": 0},
    ]


def test_the_list_continues_after_a_key(tenant: str) -> None:
    assert [space["space"] for space in listed(tenant, limit=1)] == ["eng"]
    assert [space["space"] for space in listed(tenant, after="eng")] == ["ops"]


def test_only_public_pages_are_counted_for_strangers(tenant: str) -> None:
    assert listed(tenant, public_only=True) == [
        {"space": "eng", "pages": 1, "public_pages": 1, "views_7d": 4, "visitors_7d": 0, "likes_7d": 1}
    ]


def test_every_counted_metric_has_a_column() -> None:
    assert {metric.name: name for name, metric in spaces.COUNTS.items()} == {
        metric.name: f"{metric}_{spaces.WINDOW}" for metric in counted_metrics()
    }
