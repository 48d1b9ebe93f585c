import pytest
from flask.testing import FlaskClient
from sqlalchemy import text

from tenants.db import tenant_tx
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
    ("changes", "field"),
    [
        ({"nonsense": 1}, "nonsense"),
        ({"signup_open": "yes"}, "signup_open"),
        ({"limits": {"score_updates_per_minute": 0}}, "limits.score_updates_per_minute"),
        ({"limits": {"score_updates_per_minute": True}}, "limits.score_updates_per_minute"),
        ({"limits": 5}, "limits"),
        ({"allowed_origins": ["wiki.example"]}, "allowed_origins"),
        ({"allowed_origins": "https://a.example"}, "allowed_origins"),
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


def test_what_a_newer_release_wrote_is_kept_and_only_differences_are(client: FlaskClient, tenant: str) -> None:
    admin = client_of(client, tenant)
    admin("PATCH", "/api/v1/settings", json={"signup_open": False, "limits": {"score_updates_per_minute": 10}})
    with tenant_tx(tenant) as tx:
        assert tx.execute(text("SELECT overrides FROM tenant_settings")).scalar_one() == {"signup_open": False}
        tx.execute(text("UPDATE tenant_settings SET overrides = overrides || '{\"from_the_future\": 1}'"))
    assert admin("GET", "/api/v1/settings").get_json()["signup_open"] is False
    admin("PATCH", "/api/v1/settings", json={"signup_open": True})
    with tenant_tx(tenant) as tx:
        assert tx.execute(text("SELECT overrides FROM tenant_settings")).scalar_one() == {"from_the_future": 1}


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
