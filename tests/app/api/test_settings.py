from dataclasses import fields
from typing import Any

import pytest
from flask.testing import FlaskClient

from app.api.blueprint import Schema
from app.api.settings import IntegrityOut, LimitsOut, RetentionOut, SettingsIn, SettingsOut, SpaceRuleOut
from tenants.settings import Integrity, Limits, Retention, SpaceRule, TenantSettings
from tests.people import client_of


def test_settings_have_defaults_and_change_in_part(client: FlaskClient, tenant: str, other_tenant: str) -> None:
    admin = client_of(client, tenant)
    first = admin("GET", "/api/v1/settings")
    assert first.headers["ETag"] == '"0"'
    assert first.get_json()["limits"]["score_updates_per_minute"] == 10
    changed = admin("PATCH", "/api/v1/settings", json={"limits": {"score_updates_per_minute": 20}})
    assert changed.headers["ETag"] == '"1"'
    assert changed.get_json()["limits"] == {**first.get_json()["limits"], "score_updates_per_minute": 20}
    assert client_of(client, other_tenant)("GET", "/api/v1/settings").get_json() == first.get_json()


@pytest.mark.parametrize(
    ("schema", "settings"),
    [
        (SettingsIn, TenantSettings),
        (SettingsOut, TenantSettings),
        (LimitsOut, Limits),
        (IntegrityOut, Integrity),
        (RetentionOut, Retention),
        (SpaceRuleOut, SpaceRule),
    ],
)
def test_the_schemas_list_every_setting(schema: type[Schema], settings: Any) -> None:
    assert set(schema().fields) == {field.name for field in fields(settings)}


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"nonsense": 1}, "nonsense"),
        ({"signup_open": "yes"}, "signup_open"),
        ({"signup_sees": "nothing"}, "signup_sees"),
        ({"signup_sees": ["all"]}, "signup_sees"),
        ({"signup_sees": None}, "signup_sees"),
        ({"limits": {"score_updates_per_minute": 0}}, "limits.score_updates_per_minute"),
        ({"limits": {"score_updates_per_minute": True}}, "limits.score_updates_per_minute"),
        ({"limits": 5}, "limits"),
        ({"allowed_origins": ["wiki.example"]}, "allowed_origins"),
        ({"allowed_origins": "https://a.example"}, "allowed_origins"),
        ({"picture_hosts": ["https://a.example"]}, "picture_hosts"),
        ({"retention": {"event_ids_days": 7}}, "retention.event_ids_days"),
        ({"retention": {"x": 1}}, "retention.x"),
    ],
)
def test_a_wrong_setting_is_named_and_nothing_changes(
    client: FlaskClient, tenant: str, changes: dict[str, object], field: str
) -> None:
    admin = client_of(client, tenant)
    answer = admin("PATCH", "/api/v1/settings", json={"public_scoreboard": True, **changes})
    assert answer.status_code == 422
    assert list(answer.get_json()["errors"]) == [field]
    assert admin("GET", "/api/v1/settings").get_json()["public_scoreboard"] is False


def test_sign_up_is_closed_and_who_signs_up_sees_what_is_public_until_the_tenant_says_otherwise(
    client: FlaskClient, tenant: str
) -> None:
    admin = client_of(client, tenant)
    first = admin("GET", "/api/v1/settings").get_json()
    assert (first["signup_open"], first["signup_sees"]) == (False, "public")
    changed = admin("PATCH", "/api/v1/settings", json={"signup_sees": "all"})
    assert changed.get_json() == {**first, "signup_sees": "all"} == admin("GET", "/api/v1/settings").get_json()


def test_the_rules_of_spaces_are_shown_as_they_apply(client: FlaskClient, tenant: str) -> None:
    rules = [{"prefix": "/blog/", "space": "blog", "visibility": "public"}, {"prefix": "/", "space": "site"}]
    shown = client_of(client, tenant)("PATCH", "/api/v1/settings", json={"auto_pages": True, "space_rules": rules})
    assert shown.get_json()["space_rules"] == [rules[0], {**rules[1], "visibility": "private"}]
    assert shown.get_json()["auto_pages"] is True


def test_a_replayed_change_has_its_etag_too(client: FlaskClient, tenant: str) -> None:
    admin = client_of(client, tenant)
    for _ in range(2):
        answer = admin("PATCH", "/api/v1/settings", json={"signup_open": False}, headers={"Idempotency-Key": "s"})
        assert answer.headers["ETag"] == '"1"'


def test_a_stale_change_is_412(client: FlaskClient, tenant: str) -> None:
    admin = client_of(client, tenant)
    assert admin("PATCH", "/api/v1/settings", json={}, headers={"If-Match": '"0"'}).status_code == 200
    for stale in ('"0"', '"nonsense"', "x"):
        answer = admin("PATCH", "/api/v1/settings", json={"signup_open": False}, headers={"If-Match": stale})
        assert answer.status_code == 412
    assert admin("PATCH", "/api/v1/settings", json={}, headers={"If-Match": "*"}).status_code == 200
