"""Tickets for sockets and streams, and where those are."""

import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from app.api import live
from app.settings import Settings
from tenants.tickets import Holder
from tests.beacons import ORIGIN
from tests.people import Caller, client_of, use_ticket

TICKETS = "/api/v1/live/tickets"


def test_the_api_says_where_the_sockets_are(client: FlaskClient, app_client: Caller, settings: Settings) -> None:
    assert app_client("POST", "/api/v1/live/tickets").get_json()["live_url"] == settings.live_url
    answer = client.get("/ws/leaderboards?ticket=x", headers={"Connection": "Upgrade", "Upgrade": "websocket"})
    assert answer.status_code == 404
    assert settings.live_url in answer.get_json()["detail"]


def test_a_websockets_address_without_an_upgrade_is_426(client: FlaskClient, settings: Settings) -> None:
    for path in ("/ws/leaderboards", "/ws/scoreboard/top10?tenant=demo"):
        answer = client.get(path)
        assert (answer.status_code, answer.headers["Upgrade"]) == (426, "websocket")
        problem = answer.get_json()
        assert (answer.mimetype, problem["code"]) == ("application/problem+json", "upgrade_required")
        assert settings.live_url in problem["detail"]


def holder_of(http: FlaskClient, answer: TestResponse) -> Holder:
    assert (answer.status_code, answer.get_json()["expires_in"]) == (201, 30)
    return use_ticket(http, answer.get_json()["ticket"])


def test_a_ticket_names_the_credential_that_it_was_issued_for(
    client: FlaskClient, app_client: Caller, player: Caller, tenant: str
) -> None:
    session = player("GET", "/api/v1/auth/sessions").get_json()["items"][0]["id"]
    assert holder_of(client, player("POST", TICKETS)) == Holder(tenant, "user", player.id, session)
    by_client = holder_of(client, app_client("POST", TICKETS))
    assert (by_client.kind, by_client.id, bool(by_client.proof)) == ("client", app_client.id, True)
    assert by_client.until is not None, "it ends with the client's token"
    key = app_client("POST", "/api/v1/keys", json={"origins": [ORIGIN]}).get_json()["key"]
    by_key = client.post(f"{TICKETS}?key={key}", headers={"Origin": ORIGIN})
    assert holder_of(client, by_key) == Holder(tenant, "key", key)


def test_tickets_are_limited_for_each_credential(
    app_client: Caller, client: FlaskClient, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(live.TICKETS_PER_MINUTE, "client", 2)
    assert [app_client("POST", TICKETS).status_code for _ in range(3)] == [201, 201, 429]
    assert client_of(client, tenant)("POST", TICKETS).status_code == 201


def test_who_may_not_read_boards_gets_no_ticket(client: FlaskClient, tenant: str) -> None:
    assert client_of(client, tenant, "events:write")("POST", TICKETS).status_code == 403
    assert client.post(TICKETS).status_code == 401
