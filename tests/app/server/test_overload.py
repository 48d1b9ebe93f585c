"""Overload begins when something has been late for some time, and ends some time after the last excess."""

from typing import Any

from app.server import overload
from app.server.overload import Overload, Refusals, UnderWay


def test_one_late_moment_is_no_overload() -> None:
    one = Overload()
    for at in (1.0, 5.0, 9.0):
        one.see_late(at)
        assert not one.is_on(at)
    one.see_late(9.05)
    one.see_in_time()
    one.see_late(9.15)
    assert not one.is_on(9.15), "it was in time meanwhile"


def test_being_late_for_some_time_is_overload_until_nothing_was_late_or_too_much_for_some_time() -> None:
    one = Overload()
    one.see_late(1.0)
    one.see_late(1.0 + overload.LATE_FOR_S * 1.1)
    assert one.is_on(1.2)
    one.see_in_time()
    assert one.is_on(1.2), "one moment in time does not end it"
    one.see_excess(1.5)
    assert one.is_on(1.5 + overload.CALM_AFTER_S)
    assert not one.is_on(1.51 + overload.CALM_AFTER_S)


def test_the_tenant_of_more_than_half_of_the_requests_is_known() -> None:
    under_way = UnderWay()
    assert not under_way.is_mostly_of_another("a")
    for tenant_id in "aab":
        under_way.add(tenant_id)
    assert (under_way.flooding, under_way.count) == ("a", 3)
    assert [under_way.is_mostly_of_another(tenant_id) for tenant_id in "abc"] == [False, True, True]
    under_way.remove("a")
    assert under_way.flooding is None, "half is not most"
    assert not under_way.is_mostly_of_another("c")
    for tenant_id in "ab":
        under_way.remove(tenant_id)
    assert (under_way.count, under_way._of_tenant) == (0, {})


def test_refusals_are_logged_once_a_minute_at_most(logged: Any) -> None:
    refusals = Refusals()
    for at in (1.0, 2.0, 60.0, 61.5, 62.0):
        refusals.note(at, under_way=7)
    assert [line["data"] for line in logged()] == [{"underWay": 7, "refused": 1}, {"underWay": 7, "refused": 3}]
