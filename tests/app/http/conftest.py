"""An application with a route that answers what it was sent, and the form of every error."""

from typing import Any

import marshmallow as ma
from flask import Flask
from werkzeug.test import TestResponse

from app.api.blueprint import Blueprint, Schema
from app.http.rights import public
from app.settings import Settings
from tests.conftest import create_watched_app


class EchoIn(Schema):
    name = ma.fields.String(required=True, validate=ma.validate.Length(1, 10))
    count = ma.fields.Integer(strict=True)
    inner = ma.fields.Raw()


def create_echo_app(settings: Settings) -> Flask:
    """The application, with a route that answers what it was sent and one that has a bug."""
    echo = Blueprint("echo", __name__)

    @echo.post("/api/v1/echo")
    @echo.arguments(EchoIn)
    @echo.response(200)
    @public
    def post(body: dict[str, Any]) -> dict[str, Any]:
        return body

    @echo.get("/broken")
    @public
    def broken() -> str:
        raise RuntimeError("the password is hunter2")

    app = create_watched_app(settings)
    app.register_blueprint(echo)
    return app


def assert_problem(answer: TestResponse, status: int, code: str) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.content_type == "application/problem+json"
    body: dict[str, Any] = answer.get_json()
    assert body["status"] == status
    assert body["code"] == code
    assert body["title"]
    assert body["detail"]
    assert body["type"]
    assert body["request_id"] == answer.headers["X-Request-Id"]
    return body
