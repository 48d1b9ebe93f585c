"""Overload begins when something has been late for some time, and ends some time after the last excess."""

from typing import Any

from app.server import overload
from app.server.overload import Overload, RefusalLog, UnderWay
from tenants.shares import Caller


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


def test_the_tenant_or_caller_of_more_than_half_of_the_requests_is_known() -> None:
    under_way = UnderWay()
    ada, eve, bob = Caller("a", "user:ada"), Caller("a", "user:eve"), Caller("b", "user:bob")
    assert not under_way.are_mostly_of_others(ada)
    for caller in (ada, eve, bob):
        under_way.add(caller)
    assert under_way.are_mostly_of_others(bob), "the other tenant has two of three"
    assert not under_way.are_mostly_of_others(eve), "no caller has so many"
    under_way.add(ada)
    under_way.add(ada)
    assert under_way.are_mostly_of_others(eve)
    assert not under_way.are_mostly_of_others(ada)
    for caller in (ada, ada, ada, eve, bob):
        under_way.remove(caller)
    assert (under_way.count, under_way._of_tenants, under_way._of_callers) == (0, {}, {})


def test_refusals_are_logged_once_a_minute_at_most(logged: Any) -> None:
    refusals = RefusalLog()
    for at in (1.0, 2.0, 60.0, 61.5, 62.0):
        refusals.note(at, under_way=7)
    assert [line["data"] for line in logged()] == [{"underWay": 7, "refused": 1}, {"underWay": 7, "refused": 3}]
