"""The comparison of every test's answers with the contract notices what contradicts it."""

import pytest
from flask import Flask, Response, request

from tests.contract.conformity import contradictions, specification

BOARD = (
    '{"items": [], "total": 0, "version": 1, "as_of": "2026-01-01T00:00:00Z", "source": "redis", "next_cursor": null}'
)


@pytest.mark.parametrize(
    ("status", "kind", "body", "why"),
    [
        (200, "application/json", BOARD, ""),
        (200, "application/json", BOARD.replace('"total": 0', '"total": "0"'), "total"),
        (200, "application/json", BOARD.replace('"total": 0, ', ""), "total"),
        (200, "text/html", "<p>", "text/html"),
        (201, "application/json", BOARD, "application/json"),
        (304, "application/json", "", ""),
        (403, "application/json", "{}", "application/json"),
        (403, "application/problem+json", "{}", "request_id"),
    ],
)
def test_an_answer_that_contradicts_the_contract_is_noticed(
    app: Flask, status: int, kind: str, body: str, why: str
) -> None:
    spec = specification(app)
    with app.test_request_context("/api/v1/leaderboards"):
        found = contradictions(spec, request, Response(body, status, content_type=kind))
    assert bool(found) == bool(why), found
    assert why in " ".join(found)
