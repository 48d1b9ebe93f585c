"""Tickets for sockets and streams, and where those are."""

from flask.testing import FlaskClient

from app.settings import Settings
from tests.people import Caller


def test_the_api_says_where_the_sockets_are(client: FlaskClient, app_client: Caller, settings: Settings) -> None:
    assert app_client("POST", "/api/v1/live/tickets").get_json()["live_url"] == settings.live_url
    answer = client.get("/ws/leaderboards?ticket=x")
    assert answer.status_code == 404
    assert settings.live_url in answer.get_json()["detail"]
