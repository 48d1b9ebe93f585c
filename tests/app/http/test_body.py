"""Whatever is sent, the answer is a 4xx problem+json that says what is wrong: never a 500."""

import gzip
import io
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from app.http.body import MAX_BODY_BYTES, MAX_BYTES, has_body, read_bytes, read_json, receive
from app.settings import Settings
from tenants.errors import Malformed, TooLarge
from tests.app.http.conftest import assert_problem, create_echo_app
from tests.people import client_of


@pytest.fixture(scope="module")
def built_app(settings: Settings) -> Flask:
    return create_echo_app(settings)


def deep(levels: int) -> bytes:
    return b'{"name":"x","inner":' + b"[" * levels + b"]" * levels + b"}"


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"", 400, "malformed"),
        (b"   ", 400, "malformed"),
        (b"{", 400, "malformed"),
        (b'{"name": "x",}', 400, "malformed"),
        (b'{"name": NaN}', 400, "malformed"),
        (b'{"name": Infinity}', 400, "malformed"),
        (b'{"count": 1e999}', 400, "malformed"),
        (b'{"name": "\\ud800"}', 400, "malformed"),
        (b'{"name": "\xff\xfe"}', 400, "malformed"),
        (b'{"name": "a\x00b"}', 400, "malformed"),
        (b'{"name": "a\\u0000b"}', 422, "invalid"),
        (b'{"name": "x", "inner": [{"a\\u0000": 1}]}', 422, "invalid"),
        (deep(5000), 400, "malformed"),
        (deep(32), 400, "malformed"),
        (b"[]", 422, "invalid"),
        (b"null", 422, "invalid"),
        (b'"text"', 422, "invalid"),
        (b"{}", 422, "invalid"),
        (b'{"name": 5}', 422, "invalid"),
        (b'{"name": "x", "count": "5"}', 422, "invalid"),
        (b'{"name": "x", "count": 1.5}', 422, "invalid"),
        (b'{"name": "x", "unknown": 1}', 422, "invalid"),
    ],
)
def test_a_bad_body_is_refused(client: FlaskClient, body: bytes, status: int, code: str) -> None:
    assert_problem(client.post("/api/v1/echo", data=body, content_type="application/json"), status, code)


def test_unusual_but_valid_bodies_are_accepted(client: FlaskClient) -> None:
    for body in (b'{"name": "a\\\\u0000"}', b'{"name": "[[["}', deep(30), b'{"name": "\xf0\x9f\x91\x8f"}'):
        assert client.post("/api/v1/echo", data=body, content_type="application/json").status_code == 200, body


def test_a_large_body_is_413(client: FlaskClient) -> None:
    body = b'{"name": "' + b"x" * (10 * 1024 * 1024) + b'"}'
    assert_problem(client.post("/api/v1/echo", data=body, content_type="application/json"), 413, "too_large")


NESTED = ",".join(["[" * 29 + "]" * 29] * 17_000)
KEYS = ",".join(f'"{number}":1' for number in range(100_000))


@pytest.mark.parametrize("body", [f'{{"a": [{NESTED}]}}', f"{{{KEYS}}}"], ids=["lists", "keys"])
def test_few_bytes_that_would_cost_much_time_are_refused_before_they_are_parsed(
    client: FlaskClient, tenant: str, body: str
) -> None:
    packed = {"headers": {"Content-Encoding": "gzip"}, "content_type": "application/json"}
    sender, data = client_of(client, tenant), gzip.compress(body.encode()[:MAX_BODY_BYTES])
    for answer in (
        client.post("/api/v1/auth/login", data=data, **packed),
        sender("POST", "/api/v1/events", data=data, **packed),
    ):
        assert_problem(answer, 413, "too_large")


def test_an_anonymous_caller_may_send_small_bodies_only(client: FlaskClient) -> None:
    login = {"tenant": "x", "username": "y", "password": "z" * 20_000}
    assert_problem(client.post("/api/v1/auth/login", json=login), 413, "too_large")
    assert_problem(client.post("/oauth/token", data={"scope": "a&" * 20_000}), 413, "too_large")


def test_gzip_is_unpacked_within_the_same_limit(client: FlaskClient) -> None:
    def post(packed: bytes) -> TestResponse:
        headers = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
        return client.post("/api/v1/echo", data=packed, headers=headers)

    assert post(gzip.compress(b'{"name": "x"}')).get_json() == {"name": "x"}
    assert_problem(post(gzip.compress(b" " * (MAX_BODY_BYTES + 1))), 413, "too_large")
    assert_problem(post(gzip.compress(b" " * 100_000_000)), 413, "too_large")
    assert_problem(post(b"not gzip"), 400, "malformed")
    assert_problem(post(gzip.compress(b'{"name": "x"}')[:-9]), 400, "malformed")


@pytest.mark.parametrize("content_type", ["text/plain", "application/xml", "", "multipart/form-data; boundary=x", "🙂"])
def test_a_wrong_content_type_is_415(client: FlaskClient, content_type: str) -> None:
    answer = client.post(
        "/api/v1/echo", data=b'{"name": "x"}', headers={"Content-Type": content_type.encode().decode("latin-1")}
    )
    assert_problem(answer, 415, "unsupported_media_type")


def test_an_unknown_encoding_is_415(client: FlaskClient) -> None:
    headers = {"Content-Encoding": "br", "Content-Type": "application/json"}
    assert_problem(client.post("/api/v1/echo", data=b"x", headers=headers), 415, "unsupported_media_type")


def environ(body: bytes, **headers: str) -> dict[str, Any]:
    return {"wsgi.input": io.BytesIO(body), "CONTENT_TYPE": "application/json", **headers}


def test_a_body_is_read_once_and_is_the_same_again() -> None:
    sent = environ(b'{"a": 1}', CONTENT_LENGTH="8")
    receive(sent)
    assert read_json(sent) == read_json(sent) == {"a": 1}


def test_an_error_of_a_body_is_raised_where_it_is_read() -> None:
    sent = environ(b'{"a"', CONTENT_LENGTH="8")
    receive(sent)
    for _ in range(2):
        with pytest.raises(Malformed, match="complete"):
            read_bytes(sent)


@pytest.mark.parametrize(
    ("headers", "error"),
    [
        ({"CONTENT_LENGTH": "x"}, Malformed),
        ({"CONTENT_LENGTH": "-1"}, Malformed),
        ({"CONTENT_LENGTH": "\u0661"}, Malformed),
        ({"CONTENT_LENGTH": str(MAX_BODY_BYTES + 1)}, TooLarge),
        ({"HTTP_TRANSFER_ENCODING": "chunked", MAX_BYTES: "99"}, TooLarge),
        ({"CONTENT_LENGTH": "100", MAX_BYTES: "99"}, TooLarge),
    ],
)
def test_a_length_that_is_wrong_or_too_large_is_refused(headers: dict[str, str], error: type[Exception]) -> None:
    with pytest.raises(error):
        read_bytes(environ(b" " * 100, **headers))


def test_a_chunked_body_up_to_the_limit_is_read() -> None:
    sent = environ(b" " * 99, HTTP_TRANSFER_ENCODING="chunked", **{MAX_BYTES: "99"})
    assert (has_body(sent), len(read_bytes(sent))) == (True, 99)
    assert (has_body(environ(b"")), read_bytes(environ(b"not ours"))) == (False, b"")
