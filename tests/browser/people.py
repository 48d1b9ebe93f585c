"""A tenant's app and the browsers of its users."""

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import requests
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Dialog, Page, expect

from app.run.data_folder import read_state
from tests.beacons import FIREFOX
from tests.service import Service

SHOTS = Path(__file__).parents[2] / ".build" / "screenshots"
# Titles of pages.
NASTY = {
    "script": '<script>alert("x")</script><img src=x onerror=alert(1)>',
    "rtl": "\u202egnp.exe \u2067\u05e2\u05d1\u05e8\u05d9\u05ea\u2069",
    "long": "averylongwordwithoutanyspace" * 12,
}


class Wiki:
    """The tenant's app, over HTTP."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.headers = {"Authorization": f"Bearer {service.token()}"}
        self._key: str | None = None

    def put(self, name: str, *, space: str, likes: int = 0, **fields: str) -> None:
        body = {"space": space, "title": f"Title of {name}", "url": f"https://wiki.example/{name}", **fields}
        answer = requests.put(f"{self.service.url}/api/v1/pages/{name}", json=body, headers=self.headers, timeout=10)
        assert answer.ok, answer.text
        for number in range(likes):
            self.like(name, f"u{number}")

    def like(self, name: str, user: str) -> None:
        address = f"{self.service.url}/api/v1/pages/{name}/likes/{user}"
        assert requests.put(address, headers=self.headers, timeout=10).ok

    def view(self, url: str) -> dict[str, Any]:
        """A view of an address, as the script of the tenant's site sends it."""
        if self._key is None:
            made = self.service.post("/api/v1/keys", json={"origins": ["https://wiki.example"]}, headers=self.headers)
            self._key = made.json()["key"]
        headers = {"Origin": "https://wiki.example", "User-Agent": FIREFOX}
        answer = self.service.post(f"/api/v1/beacon?key={self._key}", json={"url": url}, headers=headers)
        body: dict[str, Any] = answer.json()
        return body

    def likes_on(self, space: str) -> list[int]:
        query = {"scope": f"space:{space}", "window": "7d", "metric": "likes"}
        answer = self.service.get("/api/v1/leaderboards", params=query, headers=self.headers).json()
        return [row["value"] for row in answer["items"]]

    def put_user(self, user: str, **profile: Any) -> None:
        address = f"{self.service.url}/api/v1/users/ext:{user}"
        assert requests.put(address, json=profile, headers=self.headers, timeout=10).ok

    def pay(self, user: str, points: int) -> None:
        """Pay points by an action that is created for it."""
        catalog = f"{self.service.url}/api/v1/actions/catalog/pays-{points}"
        assert requests.put(catalog, json={"points": points}, headers=self.headers, timeout=10).ok
        event = {"type": "action", "action_type": f"pays-{points}", "user": user}
        answer = self.service.post("/api/v1/events", json={"events": [event]}, headers=self.headers)
        assert answer.json()["accepted"] == 1, answer.text

    def database(self) -> "psycopg.Connection[Any]":
        state = read_state(self.service.data_dir)
        assert state is not None
        return psycopg.connect(state["addresses"]["database_url"])


class Watched:
    """A browser that records every error, dialog and host."""

    def __init__(self, browser: Browser, service: Service, **options: Any) -> None:
        self.service = service
        # Drawing the dashboard's animations takes a seventh of a processor: tests of them ask for motion.
        usual: dict[str, Any] = {"viewport": {"width": 1280, "height": 900}, "reduced_motion": "reduce"}
        self.context: BrowserContext = browser.new_context(**{**usual, **options})
        self.errors: list[str] = []
        self.hosts: set[str] = set()
        self.context.on("console", self._record)
        self.context.on("weberror", lambda error: self.errors.append(str(error.error)))
        self.context.on("dialog", self._dismiss)
        self.context.on("request", lambda request: self.hosts.add(origin_of(request.url)))
        self.page: Page = self.context.new_page()
        self.page.on("websocket", lambda socket: self.hosts.add(origin_of(socket.url)))

    def _record(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.errors.append(message.text)

    def _dismiss(self, dialog: Dialog) -> None:
        self.errors.append(dialog.message)
        dialog.dismiss()

    def open(self, path: str = "/dashboard") -> Page:
        """As somebody who has signed in before."""
        self.page.goto(self.service.url + path)
        expect(self.page.locator(".top nav")).to_be_visible()
        return self.page

    def sign_in(self, path: str = "/dashboard", username: str | None = None, password: str | None = None) -> Page:
        """As the admin, or as somebody else."""
        self.page.goto(self.service.url + path)
        self.page.get_by_label("Tenant").fill(self.service.ready["tenant"])
        self.page.get_by_label("Username").fill(username or self.service.ready["admin_username"])
        self.page.get_by_label("Password").fill(password or self.service.ready["admin_password"])
        self.page.get_by_role("button", name="Sign in").click()
        expect(self.page.locator(".top nav")).to_be_visible()
        return self.page

    def shoot(self, name: str) -> None:
        SHOTS.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=SHOTS / f"{name}.png")

    def all_is_well(self) -> None:
        assert self.errors == []
        assert self.hosts <= {self.service.url, self.service.ready["live_url"]}


def origin_of(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme.replace('ws', 'http')}://{parts.netloc}"


def names(page: Page) -> list[str]:
    """The titles on the board."""
    return page.locator(".board tbody .name a[data-route]").all_inner_texts()
