"""Views and batches over HTTP: their form, size and answer."""

import gzip
import json
from typing import Any

import pytest

from tests.analytics.conftest import views_of
from tests.analytics.ingest.conftest import view
from tests.people import Caller


def test_one_view_is_counted_now(sender: Caller, tenant: str, page: str) -> None:
    answer = sender("POST", f"/api/v1/pages/{page}/views")
    assert answer.status_code == 202
    assert answer.get_json() == {"accepted": 1, "duplicates": 0, "rejected": []}
    assert sender("POST", f"/api/v1/pages/{page}/views", json={"user": "u-1", "id": "v1"}).status_code == 202
    again = sender("POST", f"/api/v1/pages/{page}/views", json={"id": "v1"})
    assert again.get_json() == {"accepted": 0, "duplicates": 1, "rejected": []}
    assert views_of(tenant) == 2


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"events": []},
        {"events": "x"},
        {"events": [{}] * 1001},
        {"events": [{}], "more": 1},
        [],
    ],
)
def test_a_batch_of_the_wrong_form_is_422(sender: Caller, body: Any) -> None:
    assert sender("POST", "/api/v1/events", json=body).status_code == 422


def test_gzip_and_size(sender: Caller, page: str) -> None:
    packed = gzip.compress(json.dumps({"events": [view(page)] * 1000}).encode())
    headers = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
    assert sender("POST", "/api/v1/events", data=packed, headers=headers).get_json()["accepted"] == 1000
    large = json.dumps({"events": [view(page, id="x" * 128, user="y" * 128)] * 4000}).encode()
    answer = sender("POST", "/api/v1/events", data=large, headers={"Content-Type": "application/json"})
    assert answer.status_code == 413


def test_an_idempotency_key_covers_a_batch_without_ids(sender: Caller, tenant: str, page: str) -> None:
    headers = {"Idempotency-Key": "batch-1"}
    first = sender("POST", "/api/v1/events", json={"events": [view(page)] * 5}, headers=headers)
    again = sender("POST", "/api/v1/events", json={"events": [view(page)] * 5}, headers=headers)
    assert first.data == again.data
    assert again.headers["Idempotent-Replay"] == "true"
    assert views_of(tenant) == 5
