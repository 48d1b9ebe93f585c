"""Answers as they are sent."""

from http import HTTPStatus

import orjson
import pytest

from app.server.answers import head_of, overloaded, refusal


def test_a_head_has_a_line_for_the_status_and_for_each_header() -> None:
    assert head_of("200 OK", [("A", "b"), ("Ä".lower(), "ü")]) == b"HTTP/1.1 200 OK\r\nA: b\r\n\xe4: \xfc\r\n"


@pytest.mark.parametrize("value", ["a\r\nSet-Cookie: b", "a\nb", "a\rb"])
def test_no_header_can_begin_another_line(value: str) -> None:
    with pytest.raises(ValueError, match="end of a line"):
        head_of("200 OK", [("A", value)])


def test_a_refusal_is_a_problem_with_its_code() -> None:
    head, body = refusal(HTTPStatus.BAD_REQUEST, "why")
    problem = orjson.loads(body)
    assert head.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert (problem["code"], problem["detail"], problem["status"]) == ("malformed", "why", 400)
    assert f"X-Request-Id: {problem['request_id']}\r\n".encode() in head
    assert orjson.loads(refusal(HTTPStatus.INTERNAL_SERVER_ERROR, "")[1])["code"] == "internal_error"


def test_refusals_of_too_many_requests_differ_in_their_id_only() -> None:
    (head, body), (other_head, other_body) = overloaded(), overloaded()
    problem, other = orjson.loads(body), orjson.loads(other_body)
    assert (problem["code"], problem["status"]) == ("overloaded", 503)
    assert b"Retry-After: 1\r\n" in head
    assert b"Content-Length: %d\r\n" % len(body) in head
    assert problem["request_id"] != other["request_id"]
    for own_head, own in ((head, problem), (other_head, other)):
        assert f"X-Request-Id: {own.pop('request_id')}\r\n".encode() in own_head
    assert problem == other
