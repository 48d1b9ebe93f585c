"""The catalog: which terms an action may have, and which actions are enabled."""

from typing import Any

import pytest

from analytics.scores import catalog
from analytics.scores.catalog import ActionNotFound, Terms, UnknownAction
from tenants.db import tenant_tx, utcnow
from tenants.errors import Invalid


def put(tenant: str, **terms: Any) -> None:
    with tenant_tx(tenant) as tx:
        catalog.put(tx, "post", Terms(**{"points": 10, **terms}), now=utcnow())


def test_a_cap_that_could_never_be_paid_is_refused(tenant: str) -> None:
    put(tenant, daily_cap=10)
    for terms in ({"daily_cap": 9}, {"daily_cap": 10, "points": 11}, {"daily_cap": 0}, {"daily_cap": 2**53}):
        with pytest.raises(Invalid) as refused:
            put(tenant, **terms)
        assert set(refused.value.errors or {}) == {"daily_cap"}, terms
    for limit in (0, -1, 1_000_001):
        with pytest.raises(Invalid) as refused:
            put(tenant, daily_limit=limit)
        assert set(refused.value.errors or {}) == {"daily_limit"}
    put(tenant, points=2**53 - 1, daily_cap=2**53 - 1, daily_limit=1_000_000)


@pytest.mark.parametrize(
    ("action_type", "terms", "field"),
    [
        ("has space", {}, "type"),
        ("..", {}, "type"),
        ("x" * 65, {}, "type"),
        ("post", {"points": 0}, "points"),
        ("post", {"points": 2**53}, "points"),
        ("post", {"cooldown_s": 0}, "cooldown_s"),
        ("post", {"cooldown_s": 31_536_001}, "cooldown_s"),
    ],
)
def test_a_wrong_term_is_refused_by_field(action_type: str, terms: dict[str, Any], field: str) -> None:
    with pytest.raises(Invalid) as refused:
        catalog.check(action_type, Terms(**{"points": 10, **terms}))
    assert list(refused.value.errors or {}) == [field]


def test_a_cap_below_the_points_is_allowed_where_a_token_may_allow_fewer() -> None:
    catalog.check("post", Terms(points=10, daily_cap=5, requires_token=True))


def test_only_an_enabled_action_is_found(tenant: str) -> None:
    put(tenant, daily_cap=20)
    with tenant_tx(tenant) as tx:
        assert catalog.find(tx, "post").daily_cap == 20
    put(tenant, enabled=False)
    with tenant_tx(tenant) as tx:
        with pytest.raises(UnknownAction, match="disabled"):
            catalog.find(tx, "post")
        with pytest.raises(UnknownAction, match="no action"):
            catalog.find(tx, "other")
        (row,) = catalog.list_(tx)
        assert (row.points, row.daily_cap, row.enabled) == (10, None, False), "the terms are replaced as a whole"


def test_a_removed_action_is_unknown_and_removed_once(tenant: str) -> None:
    put(tenant)
    with tenant_tx(tenant) as tx:
        catalog.remove(tx, "post")
        assert catalog.list_(tx) == []
        with pytest.raises(ActionNotFound):
            catalog.remove(tx, "post")


def test_a_catalog_is_bounded(tenant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "MAX_ACTIONS", 1)
    put(tenant)
    put(tenant, points=11)
    with pytest.raises(Invalid, match="at most 1 actions"), tenant_tx(tenant) as tx:
        catalog.put(tx, "another", Terms(points=1), now=utcnow())
    with tenant_tx(tenant) as tx:
        assert [row.type for row in catalog.list_(tx)] == ["post"]
