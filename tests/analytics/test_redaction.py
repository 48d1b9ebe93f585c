"""Erasing a user's name from stored answers changes nothing else."""

from flask.testing import FlaskClient

from tests.analytics.conftest import make_page, views_of
from tests.people import Caller, user_of


def test_erasing_somebody_with_a_common_name_lets_nothing_count_twice(
    admin: Caller, client: FlaskClient, tenant: str
) -> None:
    make_page(admin, "p")
    body = {"events": [{"type": "view", "page": "p"}]}
    headers = {"Idempotency-Key": "k"}
    assert admin("POST", "/api/v1/events", json=body, headers=headers).get_json()["accepted"] == 1
    assert user_of(client, tenant, username="accepted")("DELETE", "/api/v1/users/me").status_code == 200
    again = admin("POST", "/api/v1/events", json=body, headers=headers)
    assert (again.get_json()["accepted"], again.headers["Idempotent-Replay"]) == (1, "true")
    assert views_of(tenant) == 1
