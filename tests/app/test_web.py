"""The WSGI application: how it is put together."""

from flask.testing import FlaskClient


def test_an_odd_address_is_never_redirected(client: FlaskClient) -> None:
    for path in ("/api//v1/me", "//api/v1/me", "/api/v1/me/", "/health//live"):
        answer = client.get(path, base_url="http://evil.example")
        assert answer.status_code in {401, 404}, path
        assert "Location" not in answer.headers
