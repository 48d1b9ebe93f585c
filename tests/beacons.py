"""Views from a browser, for tests."""

from typing import Any

from flask.testing import FlaskClient
from werkzeug.test import TestResponse

ORIGIN = "https://wiki.example"
FIREFOX = "Mozilla/5.0 (X11; Linux x86_64; rv:130.0) Gecko/20100101 Firefox/130.0"


def send(http: FlaskClient, key: str, body: str = '{"page": "home"}', **changes: Any) -> TestResponse:
    headers = {"Origin": ORIGIN, "User-Agent": FIREFOX, **changes.pop("headers", {})}
    address = changes.pop("address", "10.0.0.1")
    headers = {name: value for name, value in headers.items() if value is not None}
    return http.post(
        f"/api/v1/beacon?key={key}",
        data=body,
        content_type="text/plain",
        headers=headers,
        environ_base={"REMOTE_ADDR": address},
        **changes,
    )
