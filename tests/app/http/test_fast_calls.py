"""An answer of the fast lane has the code that its status line says."""

from app.http.fast_calls import FastAnswer


def test_the_code_is_that_of_the_status_line() -> None:
    assert [FastAnswer(status, b"").code for status in ("200 OK", "304 NOT MODIFIED")] == [200, 304]
