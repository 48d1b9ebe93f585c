"""Every error is a problem+json that says what is wrong, and nothing of ours."""

import pytest
from flask import Flask
from flask.testing import FlaskClient

from app.settings import Settings
from tests.app.http.conftest import assert_problem, create_echo_app
from tests.people import client_of


@pytest.fixture(scope="module")
def built_app(settings: Settings) -> Flask:
    return create_echo_app(settings)


def test_a_field_that_is_not_valid_is_named(client: FlaskClient) -> None:
    answer = client.post("/api/v1/echo", json={"name": "x" * 11, "nmae": "y"})
    assert set(assert_problem(answer, 422, "invalid")["errors"]) == {"name", "nmae"}


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "BREW"])
def test_a_wrong_method_is_405_and_says_which_are_right(client: FlaskClient, method: str) -> None:
    answer = client.open("/api/v1/echo", method=method)
    assert_problem(answer, 405, "method_not_allowed")
    assert "POST" in answer.headers["Allow"]


@pytest.mark.parametrize(
    "path", ["/nope", "/api/v1/nope", "/api/", "/%00", "/health/ready?x=%00", "/..%2f..%2fetc", "/%ff"]
)
def test_a_strange_address_is_4xx(client: FlaskClient, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code in {400, 404}
    assert answer.content_type == "application/problem+json"


def test_a_bug_is_a_500_that_tells_nothing(client: FlaskClient, capsys: pytest.CaptureFixture[str]) -> None:
    body = assert_problem(client.get("/broken"), 500, "internal_error")
    assert "hunter2" not in str(body)


def test_an_error_repeats_little_of_what_was_sent(client: FlaskClient, tenant: str) -> None:
    admin = client_of(client, tenant)
    sent = {f"{'z' * 1_000}{number}": 1 for number in range(500)}
    for method, path in (("PATCH", "/api/v1/settings"), ("PUT", "/api/v1/pages/p"), ("POST", "/api/v1/pages/p/views")):
        answer = admin(method, path, json=sent)
        assert (answer.status_code, len(answer.data) < 20_000) == (422, True), (path, len(answer.data))
