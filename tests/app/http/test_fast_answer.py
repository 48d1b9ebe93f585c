"""An answer of the fast lane is complete: its code, its length, and the headers that every answer has."""

from app.http.fast_answer import DEFAULT_HEADERS, NOT_MODIFIED, FastAnswer


def test_the_code_is_that_of_the_status_line() -> None:
    assert [FastAnswer.of(status, b"").code for status in ("200 OK", NOT_MODIFIED)] == [200, 304]


def test_a_body_has_its_type_and_length_and_an_unchanged_answer_has_neither() -> None:
    whole, unchanged = dict(FastAnswer.of("200 OK", b"{}").headers), dict(FastAnswer.of(NOT_MODIFIED, b"").headers)
    assert (whole["Content-Type"], whole["Content-Length"]) == ("application/json", "2")
    assert not {"Content-Type", "Content-Length"} & unchanged.keys()


def test_its_own_headers_replace_the_default_ones() -> None:
    headers = FastAnswer.of("200 OK", b"", [("Cache-Control", "private")]).headers
    assert [value for name, value in headers if name == "Cache-Control"] == ["private"]
    assert {name for name, _ in headers} >= {name for name, _ in DEFAULT_HEADERS}
