"""Pages: made and changed idempotently by the tenant's own id."""

from typing import Any

import pytest
from flask.testing import FlaskClient
from sqlalchemy import text

from analytics.ingest import pages
from tenants.db import tenant_tx
from tests.analytics.conftest import make_page, views_of
from tests.people import Caller, client_of

BODY = {"space": "eng", "title": "Home", "url": "https://wiki.example/home"}


def stale(tenant: str) -> int:
    with tenant_tx(tenant) as tx:
        return int(tx.execute(text("SELECT count(*) FROM outbox")).scalar_one())


def test_a_page_is_made_then_changed_then_left_alone(sender: Caller, tenant: str) -> None:
    made = sender("PUT", "/api/v1/pages/home", json=BODY)
    assert made.status_code == 201
    first: dict[str, Any] = made.get_json()
    assert (first["visibility"], first["owner"], first["space"]) == ("private", None, "eng")
    assert stale(tenant) == 1

    same = sender("PUT", "/api/v1/pages/home", json=BODY)
    assert (same.status_code, same.get_json()) == (200, first)
    assert stale(tenant) == 1, "nothing changed, nothing is stale"

    moved = sender("PUT", "/api/v1/pages/home", json={**BODY, "space": "ops", "visibility": "public", "owner": "u-1"})
    assert moved.status_code == 200
    body = moved.get_json()
    assert (body["id"], body["space"], body["visibility"], body["owner"]) == (first["id"], "ops", "public", "u-1")
    assert body["updated_at"] > first["updated_at"]
    assert stale(tenant) == 2

    kept = sender("PUT", "/api/v1/pages/home", json=BODY).get_json()
    assert (kept["visibility"], kept["owner"]) == ("public", "u-1"), "what is not said stays"
    assert sender("GET", "/api/v1/pages/home").get_json() == kept


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"space": "has space"}, "space"),
        ({"space": "a:b"}, "space"),
        ({"space": "x" * 65}, "space"),
        ({"title": ""}, "title"),
        ({"title": "x" * 501}, "title"),
        ({"title": "line\nbreak"}, "title"),
        ({"url": "javascript:alert(1)"}, "url"),
        ({"url": "//evil.example"}, "url"),
        ({"url": "/\\evil.example"}, "url"),
        ({"url": "/x\\y"}, "url"),
        ({"url": "https://wiki.example\\@evil.example"}, "url"),
        ({"url": "https:\\\\evil.example"}, "url"),
        ({"url": "https://"}, "url"),
        ({"url": "https://[bad"}, "url"),
        ({"visibility": "secret"}, "visibility"),
        ({"owner": "has space"}, "user"),
        ({"nonsense": 1}, "nonsense"),
        ({"title": None}, "title"),
    ],
)
def test_a_bad_page_is_refused_by_field(sender: Caller, changes: dict[str, Any], field: str) -> None:
    answer = sender("PUT", "/api/v1/pages/home", json={**BODY, **changes})
    assert answer.status_code == 422
    assert field in answer.get_json()["errors"]
    assert sender("GET", "/api/v1/pages/home").status_code == 404


def test_titles_may_be_in_any_script(sender: Caller) -> None:
    title = "<script>alert(1)</script> שלום 👏 Ünï"
    assert sender("PUT", "/api/v1/pages/x", json={**BODY, "title": title}).get_json()["title"] == title


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("title", "a" + " " * 500),
        ("title", " "),
        ("url", "/" + "\U0001f600" * 600),
        ("url", "https://wiki.example:99999/"),
        ("url", "javascript:alert(1)"),
    ],
)
def test_what_a_page_may_not_be_called(sender: Caller, field: str, value: str) -> None:
    body = {"space": "s", "title": "t", "url": "/x", field: value}
    answer = sender("PUT", "/api/v1/pages/x", json=body)
    assert (answer.status_code, list(answer.get_json()["errors"])) == (422, [field])


def test_a_deleted_page_takes_its_counts_along_and_can_be_made_anew(sender: Caller, tenant: str, page: str) -> None:
    sender("POST", f"/api/v1/pages/{page}/views")
    sender("PUT", f"/api/v1/pages/{page}/likes/u-1")
    before = stale(tenant)
    assert sender("DELETE", f"/api/v1/pages/{page}").status_code == 204
    assert stale(tenant) == before + 1, "boards must learn of it"
    assert sender("DELETE", f"/api/v1/pages/{page}").status_code == 404
    assert sender("POST", f"/api/v1/pages/{page}/views").status_code == 404
    assert views_of(tenant) == 0
    make_page(sender, page)
    assert sender("PUT", f"/api/v1/pages/{page}/likes/u-1").get_json() == {"liked": True, "likes": 1}


def test_ids_of_several_tenants_are_found_together_each_in_its_own(
    client: FlaskClient, tenant: str, other_tenant: str
) -> None:
    for tenant_id, name in ((tenant, "a"), (tenant, "b"), (other_tenant, "a")):
        make_page(client_of(client, tenant_id), name)
    wanted = [(tenant, "a"), (tenant, "nowhere"), (other_tenant, "a"), (other_tenant, "b")]
    found = pages.find_ids(wanted)
    assert found.keys() == {(tenant, "a"), (other_tenant, "a")}
    assert all(found[one] == pages.find_id(*one, public_only=False) for one in found)
