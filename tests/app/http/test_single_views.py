"""A single view: from its body to what is written, and its answer."""

from datetime import timedelta
from typing import Any

import orjson
import pytest
from prometheus_client import REGISTRY
from werkzeug.test import EnvironBuilder

from analytics.ingest.pages import PageNotFound
from analytics.ingest.reasons import Refused, Result
from analytics.ingest.writes import EventKind, Item
from app.http import request_counts
from app.http.auth import Actor
from app.http.single_views import count_view, view_answer, view_request
from tenants.db import utcnow
from tenants.errors import Invalid, Malformed


def client_with(tenant: str, *scopes: str) -> Actor:
    return Actor("client", tenant, f"{tenant}.app", frozenset(scopes), token_id="jti")


def sent(body: Any = None) -> dict[str, Any]:
    return EnvironBuilder(method="POST", json=body).get_environ()


def test_a_view_may_have_no_body_at_all(tenant: str) -> None:
    actor = client_with(tenant, "events:write")
    request = view_request(actor, "home", EnvironBuilder(method="POST").get_environ())
    assert list(request.items) == [Item(EventKind.VIEW, "home", request.now, is_dated=False)]
    assert (request.tenant_id, request.token) == (tenant, actor.client_token)


def test_a_body_says_who_when_and_which(tenant: str) -> None:
    at = utcnow() - timedelta(hours=2)
    request = view_request(
        client_with(tenant), "home", sent({"user": "u-1", "id": "v1", "occurred_at": at.isoformat()})
    )
    (item,) = request.items
    assert (item.kind, item.page, item.at) == (EventKind.VIEW, "home", at)
    same = view_request(client_with(tenant), "home", sent({"id": "v1"})).items[0].event_key
    other = view_request(client_with(tenant), "home", sent({"id": "v2"})).items[0].event_key
    assert item.event_key == same != other


@pytest.mark.parametrize(
    ("page", "body", "error"),
    [
        ("home", [], Invalid),
        ("home", {"type": "like"}, Invalid),
        ("home", {"page": "other"}, Invalid),
        ("home", {"usr": "u-1"}, Refused),
        ("home", {"user": 5}, Refused),
        ("home", {"occurred_at": "yesterday"}, Refused),
        ("not an id", {}, PageNotFound),
        ("x" * 129, {}, PageNotFound),
    ],
)
def test_a_view_that_is_wrong_is_refused(tenant: str, page: str, body: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        view_request(client_with(tenant), page, sent(body))


def test_a_body_that_is_not_json_is_refused(tenant: str) -> None:
    environ = EnvironBuilder(method="POST", data=b"{", content_type="application/json").get_environ()
    with pytest.raises(Malformed):
        view_request(client_with(tenant), "home", environ)


def test_only_who_may_backfill_sends_old_views(tenant: str) -> None:
    old = {"occurred_at": (utcnow() - timedelta(days=8)).isoformat()}
    with pytest.raises(Refused) as refused:
        view_request(client_with(tenant, "events:write"), "home", sent(old))
    assert refused.value.code == "too_old"
    for scope in ("events:backfill", "admin"):
        assert len(view_request(client_with(tenant, scope), "home", sent(old)).items) == 1


def test_the_answer_says_whether_it_was_counted_before() -> None:
    assert orjson.loads(view_answer(Result.ACCEPTED)) == {"accepted": 1, "duplicates": 0, "rejected": []}
    assert orjson.loads(view_answer(Result.DUPLICATE)) == {"accepted": 0, "duplicates": 1, "rejected": []}
    with pytest.raises(ValueError, match="UNKNOWN_PAGE"):
        view_answer(Result.UNKNOWN_PAGE)


def test_views_and_duplicates_are_measured_apart() -> None:
    def measured() -> tuple[float, float]:
        views = REGISTRY.get_sample_value("plaudit_events_total", {"tenant": "of-this-test", "type": "view"})
        duplicates = REGISTRY.get_sample_value("plaudit_events_duplicate_total", {"tenant": "of-this-test"})
        return views or 0, duplicates or 0

    for result in (Result.ACCEPTED, Result.DUPLICATE, Result.ACCEPTED):
        count_view("of-this-test", result)
    request_counts.write()
    assert measured() == (2, 1)
