"""Visitors: the same for a day, counted once in half an hour, and no robots."""

from datetime import date, timedelta

import pytest

from analytics.ingest import visitors as visitors_module
from analytics.ingest.visitors import Visitors, is_bot
from tenants.db import utcnow

TODAY = date(2026, 3, 10)


@pytest.fixture(params=["redis", "no redis"])
def visitors(request: pytest.FixtureRequest, connected: None) -> Visitors:
    if request.param == "no redis":
        request.getfixturevalue("no_redis")
    return Visitors(secret_key="x" * 40)


def test_a_visitor_is_another_the_next_day() -> None:
    visitors = Visitors(secret_key="x" * 40)
    today = utcnow().date()
    same = {visitors.identify(network="10.0.0.1", agent="a", today=today) for _ in range(2)}
    assert len(same) == 1
    assert visitors.identify(network="10.0.0.1", agent="a", today=today + timedelta(days=1)) not in same


def test_a_visitor_is_another_by_network_agent_and_secret() -> None:
    ours = Visitors(secret_key="x" * 40)
    visitor = ours.identify(network="10.0.0.1", agent="a", today=TODAY)
    others = {
        ours.identify(network="10.0.0.2", agent="a", today=TODAY),
        ours.identify(network="10.0.0.1", agent="b", today=TODAY),
        Visitors(secret_key="y" * 40).identify(network="10.0.0.1", agent="a", today=TODAY),
    }
    assert len(others | {visitor}) == 4
    assert not any("10.0.0" in name for name in others), "it does not contain the network"


def test_a_visit_is_the_first_once_for_each_page_and_again_when_it_is_forgotten(
    visitors: Visitors, tenant: str, other_tenant: str
) -> None:
    visits = [(tenant, "v", "home"), (tenant, "w", "home"), (tenant, "v", "other"), (other_tenant, "v", "home")]
    assert [visitors.is_first_visit(*visit) for visit in visits] == [True] * 4
    assert [visitors.is_first_visit(*visit) for visit in visits] == [False] * 4
    visitors.forget_visit(*visits[0])
    assert [visitors.is_first_visit(*visit) for visit in visits] == [True, False, False, False]


def test_without_redis_a_process_keeps_a_bounded_number_of_visits(
    tenant: str, no_redis: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(visitors_module, "MAX_VISITS", 2)
    visitors = Visitors(secret_key="x" * 40)
    assert [visitors.is_first_visit(tenant, "v", page) for page in "abcba"] == [True, True, True, False, True]


@pytest.mark.parametrize(
    ("agent", "expected"),
    [
        ("", True),
        ("   ", True),
        ("Googlebot/2.1 (+http://www.google.com/bot.html)", True),
        ("GOOGLEBOT/2.1", True),
        ("curl/8.5.0", True),
        ("Mozilla/5.0 (X11; Linux x86_64; rv:130.0) Gecko/20100101 Firefox/130.0", False),
    ],
)
def test_a_robot_is_known_by_its_agent_and_an_empty_one_is_a_robot(agent: str, expected: bool) -> None:
    assert is_bot(agent) is expected
