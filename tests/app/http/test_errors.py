"""Every error is a problem+json: its status, its code, and nothing of ours."""

import pytest
from flask import Flask
from flask.testing import FlaskClient
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from app.http import errors
from app.settings import Settings
from tenants import errors as domain
from tenants.db import owner_tx
from tests.app.http.conftest import assert_problem, create_echo_app
from tests.people import client_of


@pytest.fixture(scope="module")
def built_app(settings: Settings) -> Flask:
    return create_echo_app(settings)


def test_a_field_that_is_not_valid_is_named(client: FlaskClient) -> None:
    answer = client.post("/api/v1/echo", json={"name": "x" * 11, "nmae": "y"})
    assert set(assert_problem(answer, 422, "invalid")["errors"]) == {"name", "nmae"}


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "BREW"])
def test_a_wrong_method_is_405_and_names_the_allowed_ones(client: FlaskClient, method: str) -> None:
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


def test_a_bug_is_a_500_without_details(client: FlaskClient, capsys: pytest.CaptureFixture[str]) -> None:
    body = assert_problem(client.get("/broken"), 500, "internal_error")
    assert "hunter2" not in str(body)


def test_an_error_repeats_little_of_what_was_sent(client: FlaskClient, tenant: str) -> None:
    admin = client_of(client, tenant)
    sent = {f"{'z' * 1_000}{number}": 1 for number in range(500)}
    for method, path in (("PATCH", "/api/v1/settings"), ("PUT", "/api/v1/pages/p"), ("POST", "/api/v1/pages/p/views")):
        answer = admin(method, path, json=sent)
        assert (answer.status_code, len(answer.data) < 20_000) == (422, True), (path, len(answer.data))


class SpecialConflict(domain.Conflict):
    code = "special"


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (domain.Malformed(), 400, "malformed"),
        (domain.Unauthenticated(), 401, "unauthenticated"),
        (domain.Forbidden(), 403, "forbidden"),
        (domain.NotFound(), 404, "not_found"),
        (domain.Conflict(), 409, "conflict"),
        (SpecialConflict(), 409, "special"),
        (domain.Stale(), 412, "stale"),
        (domain.TooLarge(), 413, "too_large"),
        (domain.WrongType(), 415, "unsupported_media_type"),
        (domain.Invalid(), 422, "invalid"),
        (domain.Limited(), 429, "rate_limited"),
        (domain.Unavailable(), 503, "unavailable"),
    ],
)
def test_each_family_of_errors_has_its_status(app: Flask, error: domain.DomainError, status: int, code: str) -> None:
    with app.test_request_context():
        answer = errors.answer_domain_error(error)
    assert (answer.status_code, answer.get_json()["code"]) == (status, code)


def test_an_error_says_when_to_try_again(app: Flask) -> None:
    with app.test_request_context():
        for error, after in (
            (domain.Limited(retry_after_s=0.2), "1"),
            (domain.Limited(retry_after_s=7.1), "8"),
            (domain.Unavailable(), "1"),
            (domain.NotFound(), None),
        ):
            assert errors.answer_domain_error(error).headers.get("Retry-After") == after


def execute(statement: str) -> None:
    with owner_tx() as tx:
        tx.execute(text("SET LOCAL statement_timeout = 100"))
        tx.execute(text(statement))


@pytest.mark.parametrize(
    ("statement", "status", "code"),
    [
        ("SELECT pg_sleep(10)", 503, "database_unavailable"),
        ("SELECT pg_terminate_backend(pg_backend_pid())", 503, "database_unavailable"),
        ("SET TRANSACTION READ ONLY; CREATE TABLE never ()", 503, "database_unavailable"),
        ("SELECT CAST(99999999999 AS integer)", 422, "invalid"),
        ("SELECT repeat('x', 2000000000) || repeat('x', 2000000000)", 422, "invalid"),
        ("SELECT nonsense", 500, "internal_error"),
    ],
)
def test_an_outage_is_503_a_value_that_does_not_fit_422_and_a_wrong_statement_a_bug(
    app: Flask, statement: str, status: int, code: str
) -> None:
    with pytest.raises(DBAPIError) as failed:
        execute(statement)
    with app.test_request_context():
        answer = errors.answer_database_error(failed.value)
    assert (answer.status_code, answer.get_json()["code"]) == (status, code)
    assert statement not in answer.get_data(as_text=True)


def test_a_full_pool_of_connections_is_503(app: Flask) -> None:
    with app.test_request_context():
        answer = errors.answer_pool_timeout(PoolTimeoutError())
    assert (answer.status_code, answer.get_json()["code"], answer.headers["Retry-After"]) == (503, "overloaded", "1")
