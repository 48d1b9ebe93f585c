"""A call of the fast lane stands for a route: the same method, address and right."""

from flask import Flask

from app.http.fast_calls import FastCall
from app.http.fast_reads import FastReads
from app.http.fast_writes import FastWrites
from app.http.rights import declared
from app.http.services import services_of


def fast_calls(app: Flask) -> list[FastCall]:
    services = services_of(app)
    found: list[FastCall] = []
    for lane in (FastReads(services), FastWrites(services)):
        for value in vars(lane).values():
            found += [call for call in (value.values() if isinstance(value, dict) else [value]) if is_call(call)]
    return found


def is_call(value: object) -> bool:
    return isinstance(value, FastCall)


def test_whoever_may_call_the_route_may_call_the_fast_lane_and_nobody_else(app: Flask) -> None:
    routes = {
        (method, rule.rule): declared(app.view_functions[rule.endpoint])
        for rule in app.url_map.iter_rules()
        for method in rule.methods or ()
    }
    calls = fast_calls(app)
    assert {call.method for call in calls} == {"GET", "POST", "PUT", "DELETE"}
    assert {(call.method, call.route): call.may for call in calls} == {
        (call.method, call.route): routes[call.method, call.route] for call in calls
    }
