"""Error reports, as Sentry receives them: a short title, a fingerprint that groups, nothing personal and no secret."""

import json
import logging
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from typing import Any

import pytest
import sentry_sdk
import structlog

from app.settings import Settings
from tenants import error_reports, logs
from tests.app.http.conftest import create_echo_app
from tests.service import eventually

PERSONAL = ("hunter2", "ada@example.com", "10.9.8.7", "sk_", "u-17", "my-own-agent", "page-4711")


class Receiver(ThreadingHTTPServer):
    """What Sentry would be: keeps the events of the envelopes that it is sent."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.texts: list[str] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def dsn(self) -> str:
        return f"http://key@127.0.0.1:{self.server_address[1]}/1"

    def events(self, count: int) -> list[dict[str, Any]]:
        """The events, once there are so many; by their fingerprint."""
        eventually(lambda: len(self.texts) >= count)
        return sorted((json.loads(text.split("\n")[2]) for text in self.texts), key=lambda one: one["fingerprint"])


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        assert isinstance(self.server, Receiver)
        decoder = {"gzip": "gzip", "br": "brotli"}[self.headers["Content-Encoding"]]  # the latter where it is installed
        self.server.texts.append(import_module(decoder).decompress(body).decode())
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def sentry() -> Iterator[Receiver]:
    with Receiver() as receiver:
        yield receiver
        error_reports.configure(None)
        sentry_sdk.get_client().close()
        receiver.shutdown()


def test_a_bug_is_one_event_named_for_its_type_and_route(settings: Settings, sentry: Receiver) -> None:
    app = create_echo_app(Settings(**{**vars(settings), "sentry_dsn": sentry.dsn}))
    client = app.test_client()
    for number in range(3):  # the same within a second, and so one event
        answer = client.get(
            f"/broken?email=ada@example.com&n={number}",
            headers={"Authorization": "Bearer sk_" + "x" * 40, "User-Agent": "my-own-agent", "X-Request-Id": "r-1"},
            environ_base={"REMOTE_ADDR": "10.9.8.7"},
        )
        assert answer.status_code == 500
    (event,) = sentry.events(1)
    time.sleep(0.2)
    assert len(sentry.texts) == 1
    assert event["fingerprint"] == ["RuntimeError", "internal_error", "GET /broken"]
    (error,) = event["exception"]["values"]
    assert (error["type"], error["value"]) == ("RuntimeError", "internal_error in GET /broken")
    assert error["stacktrace"]["frames"][-1]["function"] == "broken"
    assert event["tags"] == {"code": "internal_error", "service": "tests", "request_id": "r-1"}
    assert event["release"].startswith("plaudit@")
    assert_impersonal(event)


def fail() -> None:
    try:
        _ = dict[str, int]()["ada@example.com"]
    except KeyError as cause:
        raise ValueError("of page-4711, password hunter2") from cause


def test_lines_are_grouped_by_action_and_say_nothing_of_whom_they_are_about(sentry: Receiver) -> None:
    error_reports.configure(sentry.dsn)
    logs.begin(request_id="job-1", route="job workers.jobs.project")
    logs.bind(tenant_id="acme", user_id="u-17")
    log = structlog.get_logger()
    log.critical("Redis is not available", action="redis.outage", data={"of": "ada@example.com"})
    log.error("GET '/x' 500", action="request")
    log.warning("not an error", action="nothing")
    try:
        fail()
    except ValueError as error:
        log.exception("a job failed for a tenant", action="job.failed", data={"user": "u-17"})
        logging.getLogger("rq.worker").error("job of %s failed:\n%s", "ada@example.com", "hunter2")  # noqa: TRY400  as RQ does
        sys.excepthook(OSError, OSError("/home/ada@example.com"), error.__traceback__)
    events = sentry.events(4)
    assert [one["fingerprint"] for one in events] == [
        ["-", "redis.outage", "-"],
        ["OSError", "uncaught", "-"],
        ["ValueError", "job.failed", "job workers.jobs.project"],
        ["ValueError", "rq.worker", "job workers.jobs.project"],
    ]
    assert (events[0]["message"], events[0]["level"]) == ("Redis is not available", "fatal")
    assert [one["value"] for one in events[2]["exception"]["values"]] == [
        "",
        "job.failed in job workers.jobs.project",
    ]
    assert events[2]["tags"]["tenant"] == "acme"
    for event in events:
        assert_impersonal(event)


def assert_impersonal(event: dict[str, Any]) -> None:
    for error in event.get("exception", {}).get("values", []):
        assert all("vars" not in frame for frame in error["stacktrace"]["frames"])
        del error["stacktrace"]  # with lines of the code: of this test, too
    assert not [one for one in PERSONAL if one in json.dumps(event)]
    assert event.keys().isdisjoint({"user", "request", "breadcrumbs", "extra", "contexts"})
