"""The least that a server can do: a WSGI function and a Flask route. The floors that our routes are compared with."""

from collections.abc import Callable, Iterable
from typing import Any

from flask import Flask, request

HELLO = b"hello"

application = Flask("bare")


@application.get("/")
def hello() -> str:
    return HELLO.decode()


@application.post("/")
def receive() -> tuple[dict[str, bool], int]:
    request.get_json()
    return {"ok": True}, 202


def function(_environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """A bare WSGI application."""
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", str(len(HELLO)))])
    return [HELLO]
