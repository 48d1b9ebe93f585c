"""Every route uses a share, a tenant's or nobody's, so that no flood is outside of them."""

import ast
from collections.abc import Callable
from inspect import getsource
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient

from app.http import edge, rights
from app.http.rights import Access, May, declared, public, publishable_key, requires, requires_or_key
from app.http.services import services_of
from tenants.shares import TenantShare
from tests.conftest import make_tenant
from tests.people import client_of

# The decorators with a share.
SHARED = {each.__name__: each for each in (public, publishable_key, requires, requires_or_key)}
# The server has a limit of its own for these (`Door.enter_for_operators`).
LIMITED_BY_THE_DOOR = {"operator": Access.OPERATOR, "probe": Access.PROBE}
ADDRESS = "192.0.2.7"


def declaring(source: str) -> set[str]:
    """The decorators: the functions that declare what they demand."""
    functions = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
    return {
        function.name
        for function in functions
        if any(isinstance(node, ast.Name) and node.id == "_declare" for node in ast.walk(function))
    }


def test_the_decorators_are_those_that_are_tested_here() -> None:
    assert declaring(getsource(rights)) == {*SHARED, *LIMITED_BY_THE_DOOR}
    assert declaring("def free(view):\n    return _declare(view, Access.PUBLIC)") == {"free"}


def test_only_checks_and_metrics_are_outside_of_the_shares(app: Flask) -> None:
    outside = {
        rule.rule
        for rule in app.url_map.iter_rules()
        if declared(app.view_functions[rule.endpoint]) in LIMITED_BY_THE_DOOR.values()
    }
    assert outside
    assert all(path.startswith(edge.FOR_OPERATORS) for path in outside)


def units(share: TenantShare) -> dict[str, dict[str, int]]:
    return {tenant_id: dict(tenant.in_use) for tenant_id, tenant in share._tenants.items()}


@pytest.mark.parametrize("name", SHARED)
def test_a_route_uses_one_unit_of_its_callers_share_while_it_runs(own_app: Flask, name: str) -> None:
    installed, tenant = services_of(own_app), make_tenant()

    def view() -> list[Any]:
        return [units(installed.threads), units(installed.nobodys_threads)]

    decorator: Callable[..., Any] = SHARED[name]
    decorated = decorator(May.READ_BOARDS)(view) if name.startswith("requires") else decorator(view)
    own_app.add_url_rule("/shared", view_func=decorated)
    client: FlaskClient = own_app.test_client()
    caller = client_of(client, tenant)
    by_token = [{tenant: {f"client:{caller.id}": 1}}, {}]
    by_key, by_nobody = [{tenant: {ADDRESS: 1}}, {}], [{}, {"": {ADDRESS: 1}}]
    given = caller("POST", "/api/v1/keys", json={"origins": ["https://a.example"]}).get_json()["key"]
    expected = {
        "public": [by_nobody] * 3,
        "publishable_key": [None, by_key, by_key],
        "requires": [None, None, by_token],
        "requires_or_key": [None, by_key, by_token],
    }
    headers: list[dict[str, str]] = [{}, {"X-Plaudit-Key": given}]
    headers.append({"X-Plaudit-Key": given, "Authorization": f"Bearer {caller.token}"})
    answers = [client.get("/shared", headers=each, environ_base={"REMOTE_ADDR": ADDRESS}) for each in headers]
    assert [answer.get_json() if answer.status_code == 200 else None for answer in answers] == expected[name]
    assert (units(installed.threads), units(installed.nobodys_threads)) == ({}, {}), "and gives it back"
