"""A bare Flask route: the baseline for the servers and our routes."""

from flask import Flask, request

application = Flask("bare")


@application.get("/")
def hello() -> str:
    return "hello"


@application.post("/")
def receive() -> tuple[dict[str, bool], int]:
    request.get_json()
    return {"ok": True}, 202
