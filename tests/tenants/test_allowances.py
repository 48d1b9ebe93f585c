"""Limits by the minute on many at once: one for all processes by Redis, and without it one for each."""

from uuid import uuid4

import pytest

from tenants import allowances
from tenants.allowances import give_back, take


@pytest.fixture(params=["redis", "no redis"])
def redis(request: pytest.FixtureRequest, connected: None) -> str:
    if request.param == "no redis":
        request.getfixturevalue("no_redis")
    return str(request.param)


def test_who_wants_more_than_there_is_gets_the_rest_and_a_wait(redis: str) -> None:
    tenant = str(uuid4())
    first, second, third = (take("actions", 100, 60, tenant) for _ in range(3))
    assert [one.amount for one in (first, second, third)] == [60, 40, 0]
    assert [one.state.is_allowed for one in (first, second, third)] == [True, False, False]
    assert 1 <= second.state.resets_in_s <= third.state.resets_in_s <= 120
    assert take("actions", 100, 60, str(uuid4())).amount == 60, "another tenant has its own"
    give_back("actions", 30, tenant)
    assert take("actions", 100, 60, tenant).amount == 30


def test_processes_count_together(connected: None) -> None:
    tenant = str(uuid4())
    assert take("actions", 100, 60, tenant).amount == 60
    allowances._own.clear()  # as another process has none of it
    assert take("actions", 100, 60, tenant).amount == 40


@pytest.mark.parametrize(
    ("at", "amount", "wait_s"),
    [
        (0, 100, None),
        (59, 0, 61),  # 100 in the minute before: the wanted 100 fit when all of them are gone
        (60, 0, 60),
        (90, 50, 30),  # half of the minute before is past, and the other half in half a minute
        (120, 50, 60),
        (600, 100, None),
    ],
)
def test_the_minute_before_is_weighed_by_what_is_left_of_it(at: int, amount: int, wait_s: int | None) -> None:
    key = f"test:{uuid4()}"
    allowances._take_here(key, 100, 100 if at else 0, now=6_000)
    if at == 120:
        allowances._take_here(key, 100, 50, now=6_090)
    got, taken, before, elapsed_ms = allowances._take_here(key, 100, 100, now=6_000 + at)
    assert got == amount
    if wait_s is not None:
        wait = allowances._wait_s(100, 100 - got, taken, before, elapsed_ms / 1000)
        later = allowances._take_here(key, 100, 100 - got, now=6_000 + at + wait + 0.01)
        assert later[0] == 100 - got, "after that wait the rest is there"
        assert wait == pytest.approx(wait_s)
