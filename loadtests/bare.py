"""A bare Flask route: what the servers and our routes are measured against."""

from flask import Flask, request

application = Flask("bare")


@application.get("/")
def hello() -> str:
    return "hello"


@application.post("/")
def take() -> tuple[dict[str, bool], int]:
    request.get_json()
    return {"ok": True}, 202
