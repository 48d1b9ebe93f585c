"""The same request to the fast lane and to the route behind it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from flask import Flask

from app.http.fast_lane import FastLane
from tests.people import Caller

OF_THIS_ANSWER = {"x-request-id", "date", "server", "connection"}
# A header that only the routes support, and that changes nothing.
THROUGH_FLASK = {"Cookie": "unrelated=1"}


def answer_of(caller: Caller, method: str, path: str, **options: Any) -> tuple[int, dict[str, str], Any]:
    """Status, headers and body, without what differs with every answer."""
    answer = caller(method, path, **options)
    headers = {name.lower(): value for name, value in answer.headers.items() if name.lower() not in OF_THIS_ANSWER}
    body = answer.get_json(silent=True)
    if isinstance(body, dict) and body.pop("request_id", None):  # of a problem
        headers.pop("content-length")
    return answer.status_code, headers, body if body is not None else answer.data


def by_the_route(caller: Caller, method: str, path: str, **options: Any) -> tuple[int, dict[str, str], Any]:
    headers = {**options.pop("headers", {}), **THROUGH_FLASK}
    return answer_of(caller, method, path, headers=headers, **options)


@contextmanager
def paths_at_the_routes(app: Flask) -> Iterator[list[str]]:
    """The paths that come as far as Flask meanwhile."""
    lane: Any = app.wsgi_app
    assert isinstance(lane, FastLane)
    seen: list[str] = []
    flask = lane._flask

    def watched(environ: dict[str, Any], start_response: Any) -> Any:
        seen.append(environ["PATH_INFO"])
        return flask(environ, start_response)

    lane._flask = watched
    try:
        yield seen
    finally:
        lane._flask = flask
