"""What all requests and responses share: unknown fields are refused, booleans are strict, times are in UTC."""

from datetime import datetime, timedelta, timezone
from typing import Any

import marshmallow as ma
import pytest
from flask import Flask

from app.api.blueprint import Schema, SliceIn, StrictBoolean, StrictParser, load
from tenants.errors import Invalid
from tests.people import Caller


class OpenIn(Schema):
    name = ma.fields.String(required=True)
    is_open = StrictBoolean()


class WhenOut(Schema):
    at = ma.fields.AwareDateTime()


def test_every_missing_unknown_and_wrong_field_is_named() -> None:
    with pytest.raises(Invalid) as refused:
        load(OpenIn(), {"nmae": "x", "is_open": 1})
    assert set(refused.value.errors or {}) == {"name", "nmae", "is_open"}
    assert load(OpenIn(), {"name": "x", "is_open": False}) == {"name": "x", "is_open": False}


@pytest.mark.parametrize("value", [0, 1, "true", "", None, []])
def test_nothing_but_true_and_false_is_a_boolean(value: Any) -> None:
    with pytest.raises(Invalid):
        load(OpenIn(), {"name": "x", "is_open": value})


def test_a_time_is_shown_in_utc_whatever_its_zone() -> None:
    at = datetime(2026, 1, 1, 12, tzinfo=timezone(timedelta(hours=5, minutes=30)))
    assert WhenOut().dump({"at": at}) == {"at": "2026-01-01T06:30:00Z"}


def test_a_misspelt_parameter_of_a_query_is_refused_by_name(app_client: Caller) -> None:
    answer = app_client("GET", "/api/v1/pages?limt=3")
    assert (answer.status_code, list(answer.get_json()["errors"])) == (422, ["limt"])


def test_a_route_that_changes_its_query_does_not_change_the_cached_one(app: Flask) -> None:
    parser, schema = StrictParser(), SliceIn()
    for _ in range(2):
        with app.test_request_context("/?limit=3"):
            query = parser.parse(schema, location="query")
            assert query == {"limit": 3}
            query["limit"] = 99


def test_the_same_query_is_parsed_for_each_schema(app: Flask) -> None:
    parser, text = StrictParser(), Schema.from_dict({"limit": ma.fields.String()})()
    with app.test_request_context("/?limit=3"):
        assert parser.parse(SliceIn(), location="query") == {"limit": 3}
        assert parser.parse(text, location="query") == {"limit": "3"}
