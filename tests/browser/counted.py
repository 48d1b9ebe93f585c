"""A site that counts its views with plaudit.js, and what its readers' browsers send."""

import hashlib
import hmac
import json
import time
from collections.abc import Callable
from typing import Any

import psycopg
import requests
from playwright.sync_api import ConsoleMessage, Page, Request

from app.run.data_folder import read_state
from tests.browser.site import Site
from tests.committed_views import COMMITTED_VIEWS
from tests.service import Service

AGENT = "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 Chrome/130.0 Safari/537.36"  # headless ones are robots
# Longer than the script waits for a router to name its page.
LONGEST_WAIT_MS = 1_300


class CountedSite:
    """The tenant's side: its pages, its key, and how often each page was seen."""

    def __init__(self, service: Service, site: Site) -> None:
        self.service = service
        self.site = site
        self.origin = site.origin
        self.headers = {"Authorization": f"Bearer {service.token()}"}
        answer = service.post("/api/v1/keys", json={"origins": [site.origin]}, headers=self.headers)
        self.key = answer.json()["key"]
        self.signing_secret = answer.json()["signing_secret"]

    def script(self, attributes: str = "", *, loading: str = "defer") -> str:
        return f'<script {loading} src="{self.service.url}/plaudit.js" data-key="{self.key}" {attributes}></script>'

    def signature(self, user: str) -> str:
        """As a site's server makes it."""
        seconds = int(time.time())
        signed = f"{self.service.ready['tenant']}\n{user}\n{seconds}"
        return f"{seconds}.{hmac.new(self.signing_secret.encode(), signed.encode(), hashlib.sha256).hexdigest()}"

    def put(self, path: str, *, attributes: str = "", loading: str = "defer", head: str = "") -> str:
        """A page at this path, whose title is the path; the result is its id."""
        script = self.script(attributes, loading=loading)
        self.site.pages[path] = f"<!doctype html><title>{path}</title>{head}{script}"
        return self.register(path)

    def register(self, path: str) -> str:
        external_id = f"b-{path.strip('/')}"
        body = {"space": "s", "title": path, "url": self.origin + path}
        address = f"{self.service.url}/api/v1/pages/{external_id}"
        assert requests.put(address, json=body, headers=self.headers, timeout=10).ok
        return external_id

    def views(self) -> dict[str, int]:
        """What was counted so far, by the database itself."""
        state = read_state(self.service.data_dir)
        assert state is not None
        with psycopg.connect(state["addresses"]["database_url"]) as connection:
            rows = connection.execute(
                f"SELECT p.external_id, sum(v.views)::int FROM {COMMITTED_VIEWS} v"
                " JOIN pages p ON p.id = v.page_id GROUP BY 1"
            ).fetchall()
        return dict(rows)


class Reader:
    """A page in a browser, with everything that the script sends and warns of."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.sent: list[dict[str, Any]] = []
        self.warnings: list[str] = []
        page.on("request", self._note)
        page.on("console", self._note_warning)

    def _note(self, request: Request) -> None:
        if "/api/v1/beacon" in request.url:
            self.sent.append(json.loads(request.post_data or "null"))

    def _note_warning(self, message: ConsoleMessage) -> None:
        # The browser's own line about a refused request: what the service refuses is the subject of other tests.
        if not message.text.startswith("Failed to load resource"):
            self.warnings.append(message.text)

    def run(self, script: str) -> Any:
        return self.page.evaluate(script)

    def has_sent(self, count: int) -> None:
        """Wait until that much was sent."""
        wait_for(self.page, lambda: len(self.sent) >= count)


def wait_for(page: Page, condition: Callable[[], bool], within_s: float = 60) -> None:
    """Like `eventually`, but the browser's events arrive meanwhile."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        page.wait_for_timeout(20)
