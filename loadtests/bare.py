"""The least that a server can do: a WSGI function and a Flask route. The floors that our routes are compared with.

`python -m loadtests.bare application 8000 2 160` serves one of them as the API is served: by the same server, in so
many processes and threads.
"""

import asyncio
import os
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from flask import Flask, request

from app.run.launcher import die_with_parent
from app.server import processes, wsgi_calls
from app.server.requests import Request
from app.server.site import Site

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


class Front:
    """As `app.server.front.Front`, but for this one application."""

    def __init__(self, app: Any, *, threads: int, parent: int) -> None:
        die_with_parent(parent)
        self._app = app
        self._threads = ThreadPoolExecutor(threads)

    def start(self, loop: asyncio.AbstractEventLoop) -> Site:
        return Site(loop, self._answer, max_slow_bodies=1, max_connections=1_000)

    def _answer(self, asked: Request) -> None:
        self._threads.submit(wsgi_calls.answer, self._app, asked, time.monotonic())


def main() -> None:
    name, port, count, threads = sys.argv[1:]
    app, parent = {"application": application, "function": function}[name], os.getpid()
    load: Any = lambda: Front(app, threads=int(threads), parent=parent)  # noqa: E731
    processes.serve(load, host="127.0.0.1", port=int(port), processes=int(count))


if __name__ == "__main__":
    main()
