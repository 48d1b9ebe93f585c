"""Erasing a user's name from stored answers changes nothing else."""

from flask.testing import FlaskClient
from sqlalchemy import text
from werkzeug.test import TestResponse

from tenants.db import tenant_tx
from tests.analytics.conftest import make_page, views_of
from tests.analytics.quests.questing import OFFER
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


def test_what_an_erased_user_wrote_in_quests_is_gone_from_stored_answers(
    admin: Caller, client: FlaskClient, tenant: str
) -> None:
    creator, performer, attester = (user_of(client, tenant) for _ in range(3))
    quest = creator("POST", "/api/v1/quests", json={**OFFER, "attestations_required": 2}).get_json()["id"]

    def take(caller: Caller, step: str, body: dict[str, object]) -> TestResponse:
        return caller("POST", f"/api/v1/quests/{quest}/{step}", json=body, headers={"Idempotency-Key": "k"})

    take(performer, "claim", {})
    attestation = {"rating": 4, "comments": "my secret words", "signature": "0xsecret"}
    assert "secret" in take(performer, "submit", {"submission": "my secret work"}).text
    assert "secret words" in take(attester, "attestations", attestation).text
    kept = "SELECT convert_from(body, 'UTF8') FROM idempotency_keys"
    with tenant_tx(tenant) as tx:
        bodies = "".join(body or "" for body in tx.scalars(text(kept)))
    assert all(word in bodies for word in ("secret words", "0xsecret", "secret work"))
    for caller in (attester, performer):
        assert caller("DELETE", "/api/v1/users/me").status_code == 200
    with tenant_tx(tenant) as tx:
        bodies = "".join(body or "" for body in tx.scalars(text(kept)))
    assert quest in bodies
    assert "secret" not in bodies
