"""The application behind the real web server, in this process."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

import orjson
import uvloop
from flask import Flask
from werkzeug.wrappers import Response

from app.http.services import services_of
from app.server import processes
from app.server.front import Front
from tenants import waiting
from tests.app.http.test_fast_reads import RANK
from tests.people import Caller
from tests.service import eventually

VIEWS = "/api/v1/pages/a/views"


class OverHttp:
    """What a `Caller` uses of Flask's test client, over a connection to the server."""

    def __init__(self, url: str) -> None:
        self._address = urlsplit(url).netloc

    def open(
        self,
        path: str,
        *,
        method: str,
        headers: dict[str, str],
        json: Any = None,
        data: bytes | None = None,
        content_type: str | None = None,
    ) -> Response:
        if json is not None:
            data, content_type = orjson.dumps(json), "application/json"
        with contextlib.closing(HTTPConnection(self._address, timeout=10)) as connection:
            sent = {"User-Agent": "test", **headers, **({"Content-Type": content_type} if content_type else {})}
            connection.request(method, path, body=data, headers=sent)
            answer = connection.getresponse()
            response = Response(answer.read(), answer.status)
            response.headers.clear()  # a type that the server did not send
            response.headers.extend(answer.getheaders())
            return response


def over_http(caller: Caller, url: str) -> Caller:
    """The same caller, to the server at this address."""
    return replace(caller, http=OverHttp(url))  # type: ignore[arg-type]  # with what callers use


@contextlib.contextmanager
def served(app: Flask) -> Iterator[str]:
    """Its address. The event loop has a thread of its own, as it has a process otherwise."""
    front, listening = Front(app, services_of(app)), processes.listen("127.0.0.1", 0, shares_port=False)
    port = listening.getsockname()[1]
    loop, stop = uvloop.new_event_loop(), asyncio.Event()

    def run() -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_until_complete(processes.serve_here(front, listening, stop))
        finally:
            waiting.allow_in_this_thread()
            loop.close()

    thread = threading.Thread(target=run, name="served")
    thread.start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
        assert not thread.is_alive()


def become_known(remote: Caller, in_threads: list[str]) -> None:
    """Until the caller's plain calls are answered without a thread."""

    def is_known() -> bool:
        in_threads.clear()
        answers = [remote("POST", VIEWS), remote("GET", f"{RANK}?member=a")]
        assert [answer.status_code for answer in answers] == [202, 200]
        return not in_threads

    eventually(is_known)
