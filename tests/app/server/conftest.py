"""The application behind the real web server, with a tenant whose boards are filled."""

from collections.abc import Iterator
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient

from app.server import front, wsgi_calls
from app.server.door import Door
from app.server.requests import Request
from tests.app.http.test_fast_reads import fill
from tests.app.server.served import served
from tests.people import Caller


@pytest.fixture
def url(app: Flask) -> Iterator[str]:
    with served(app) as address:
        yield address


@pytest.fixture
def admin(client: FlaskClient, tenant: str) -> Caller:
    return fill(client, tenant)


@pytest.fixture
def in_threads(app: Flask, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths that a thread answers."""
    seen: list[str] = []
    answer = wsgi_calls.answer

    def watched(app: Any, request: Request, submitted_at: float) -> None:
        seen.append(request.environ["PATH_INFO"])
        answer(app, request, submitted_at)

    monkeypatch.setattr(wsgi_calls, "answer", watched)
    return seen


@pytest.fixture
def doors(monkeypatch: pytest.MonkeyPatch) -> list[Door]:
    """The door of each server that the test starts."""
    made: list[Door] = []

    def make(**options: int) -> Door:
        made.append(Door(**options))
        return made[-1]

    monkeypatch.setattr(front, "Door", make)
    return made
