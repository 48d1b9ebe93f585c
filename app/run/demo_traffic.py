"""The demo's data: three spaces of pages, thirty days of history, quests, and continuous traffic.

A process of its own (`plaudit up --demo` starts it) that uses only the API, as any tenant app would.
"""

import base64
import json
import math
import random
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any

from app.run import demo_quests
from app.run.data_folder import write_private
from app.run.demo_quests import Players

HISTORY_DAYS = 30
BOARDS_WITHIN_S = 60
VIEWS_A_DAY = 4000
READERS = 400
SEED = "plaudit-demo"

SPACES = {
    "engineering": (
        ["Deploying", "Debugging", "Scaling", "Monitoring", "Testing", "Migrating", "Reviewing", "Securing"],
        ["the search service", "PostgreSQL", "our message queue", "the mobile apps", "feature flags", "the billing API",
         "CI pipelines", "Kubernetes clusters", "the design system", "on-call rotations", "the data warehouse",
         "our public SDKs"],
    ),
    "support": (
        ["How to reset", "Troubleshooting", "Setting up", "Explaining", "Restoring", "Exporting", "Escalating",
         "Removing"],
        ["two-factor login", "a stuck import", "single sign-on", "an invoice", "a shared workspace", "e-mail delivery",
         "the desktop client", "webhooks", "user permissions", "a deleted project", "API tokens", "a trial account"],
    ),
    "handbook": (
        ["Welcome to", "A guide to", "Notes on", "The story of", "Checklist for", "Questions about", "Principles of",
         "Planning"],
        ["your first week", "travel and expenses", "running retrospectives", "writing well", "hiring interviews",
         "parental leave", "the annual offsite", "remote work", "giving feedback", "quarterly goals", "mentoring",
         "our values"],
    ),
}  # fmt: skip

# Twenty of each: four hundred readers, each with a name of their own.
FIRST_NAMES = [
    "Ada",
    "Bruno",
    "Chiara",
    "Dimitri",
    "Elif",
    "Farid",
    "Greta",
    "Hana",
    "Ivo",
    "Jun",
    "Kofi",
    "Lena",
    "Malik",
    "Nora",
    "Oskar",
    "Priya",
    "Quentin",
    "Rosa",
    "Sven",
    "Tala",
]
LAST_NAMES = [
    "Adler",
    "Banerjee",
    "Costa",
    "Dupont",
    "Eriksen",
    "Fischer",
    "Garcia",
    "Haddad",
    "Ito",
    "Jansen",
    "Kaya",
    "Lindholm",
    "Moreau",
    "Novak",
    "Okafor",
    "Park",
    "Quispe",
    "Rossi",
    "Silva",
    "Tanaka",
]


@dataclass(frozen=True)
class DemoPage:
    external_id: str
    space: str
    title: str
    weight: float
    # Above 1 the page gains readers over the month, below 1 it loses them.
    trend: float


class Api:
    """What a tenant app needs of the API: a token, and JSON."""

    def __init__(self, url: str, client_id: str, client_secret: str, *, demo_secret: str) -> None:
        self.url = url
        self._demo_secret = demo_secret
        self._basic = base64.b64encode(f"{client_id}:{client_secret}".encode()).decode()
        self._token = ""

    def call(self, method: str, path: str, body: Any = None) -> Any:
        try:
            return self._send(method, path, body, f"Bearer {self._token}")
        except urllib.error.HTTPError as error:
            if error.code != 401:
                raise
            form = urllib.parse.urlencode({"grant_type": "client_credentials"}).encode()
            self._token = self._send("POST", "/oauth/token", form, f"Basic {self._basic}")["access_token"]
            return self._send(method, path, body, f"Bearer {self._token}")

    def _send(self, method: str, path: str, body: Any, authorization: str) -> Any:
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        kind = "application/x-www-form-urlencoded" if isinstance(body, bytes) else "application/json"
        headers = {"Authorization": authorization, "Content-Type": kind, "X-Plaudit-Demo": self._demo_secret}
        request = urllib.request.Request(self.url + path, data=data, method=method, headers=headers)  # noqa: S310
        with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310  our own service
            text = answer.read()
        return json.loads(text) if text else None


# What the demo's readers are paid for.
ACTIONS: dict[str, dict[str, Any]] = {
    "comment": {"points": 5, "daily_cap": 250},
    "edit": {"points": 20},
    "answer": {"points": 50},
    "first-read": {"points": 2, "once_per_object": True},
}


def build_pages() -> list[DemoPage]:
    rng = random.Random(SEED)  # noqa: S311
    titles = [
        (space, f"{verb} {thing}") for space, (verbs, things) in SPACES.items() for verb in verbs for thing in things
    ]
    rng.shuffle(titles)
    return [
        DemoPage(
            external_id="-".join(title.lower().replace("-", " ").split()),
            space=space,
            title=title,
            weight=1 / (rank + 3) ** 0.9,  # a few pages have most readers
            trend=math.exp(rng.gauss(0, 0.6)),
        )
        for rank, (space, title) in enumerate(titles)
    ]


def history(pages: list[DemoPage], *, days: int, now: datetime) -> Iterator[dict[str, Any]]:
    """Views and likes of these days: busy mornings, quiet nights, quieter weekends. The same ids every time."""
    rng = random.Random(SEED)  # noqa: S311
    first = now - timedelta(days=days)
    number = 0
    for hour in range(days * 24):
        start = first + timedelta(hours=hour)
        progress = hour / (days * 24)
        weights = [page.weight * page.trend**progress for page in pages]
        for page in rng.choices(pages, weights, k=round(VIEWS_A_DAY / 24 * rhythm(start) * rng.uniform(0.8, 1.2))):
            at = (start + timedelta(seconds=rng.randrange(3600))).isoformat()
            user = f"reader-{rng.randrange(READERS)}"
            yield _event("view", page, user, at, number)
            number += 1
            if rng.random() < 0.04:
                yield _event("like", page, user, at, number)
                number += 1


def _event(kind: str, page: DemoPage, user: str, at: str, number: int) -> dict[str, Any]:
    return {"type": kind, "page": page.external_id, "user": user, "occurred_at": at, "id": f"demo-{number}"}


def reader(number: int) -> dict[str, str]:
    """A reader with a name, as events carry it."""
    # Neighbours, who are at the top together, share neither name.
    first, last = FIRST_NAMES[number % 20], LAST_NAMES[(number + number // 20) % 20]
    return {"id": f"reader-{number}", "name": f"{first} {last}"}


def rhythm(at: datetime) -> float:
    """How busy this hour is, 1 on average over a working day."""
    day = 0.25 + 1.5 * max(0.0, math.sin(math.pi * (at.hour - 6) / 15)) if 6 <= at.hour <= 21 else 0.2
    return day * (0.35 if at.weekday() >= 5 else 1.0)


def seed(api: Api, pages: list[DemoPage], marker: Path, *, days: int) -> None:
    """Send pages and history, once. Safe to interrupt and repeat: pages and events are identified by their ids."""
    if marker.exists():
        return
    for action, terms in ACTIONS.items():
        api.call("PUT", f"/api/v1/actions/catalog/{action}", terms)
    for page in pages:
        body = {
            "space": page.space,
            "title": page.title,
            "url": f"https://wiki.demo.example/{page.space}/{page.external_id}",
            "visibility": "private" if page.space == "engineering" else "public",
        }
        api.call("PUT", f"/api/v1/pages/{page.external_id}", body)
    events = history(pages, days=days, now=datetime.now(UTC))
    while batch := list(islice(events, 1000)):
        api.call("POST", "/api/v1/events", {"events": batch})
    write_private(marker, "")


def wait_for_boards(api: Api) -> None:
    """Wait until Redis answers for every scope of the demo: the workers fill its boards at each start, and log it.

    Checked by the window of one day, whose boards are filled last: history is sent oldest day first.
    """
    deadline = time.monotonic() + BOARDS_WITHIN_S
    scopes = ["global", *(f"space:{name}" for name in SPACES), "tenant", "users"]
    while scopes and time.monotonic() < deadline:
        metric = "points" if scopes[0] == "users" else "views"
        query = urllib.parse.urlencode({"scope": scopes[0], "window": "1d", "metric": metric, "limit": 1})
        try:
            is_filled = api.call("GET", f"/api/v1/leaderboards?{query}")["source"] == "redis"
        except (urllib.error.URLError, OSError):
            is_filled = False
        if is_filled:
            scopes.pop(0)
        else:
            time.sleep(0.2)


def send_traffic(api: Api, pages: list[DemoPage]) -> None:
    """Send views, likes and actions, about one view each second, and a step of a quest each minute, for ever."""
    rng = random.Random()  # noqa: S311
    players = Players(api, [page.title for page in pages], READERS, rng)
    weights = [page.weight * page.trend for page in pages]
    while True:
        page = rng.choices(pages, weights)[0].external_id
        try:
            api.call("POST", f"/api/v1/pages/{page}/views", {"user": f"reader-{rng.randrange(READERS)}"})
            if rng.random() < 0.12:
                method = "PUT" if rng.random() < 0.85 else "DELETE"
                api.call(method, f"/api/v1/pages/{page}/likes/reader-{rng.randrange(READERS)}")
            if rng.random() < 0.12:
                user = reader(min(int(rng.paretovariate(0.7)), READERS - 1))  # a few do most
                action = {"type": "action", "action_type": rng.choice(list(ACTIONS)), "user": user, "page": page}
                api.call("POST", "/api/v1/events", {"events": [action]})
            if rng.random() < 1 / 60:
                players.take_step(now=datetime.now(UTC))
        except (urllib.error.URLError, OSError):
            time.sleep(1)
        time.sleep(rng.expovariate(1))


def run(
    api: Api, *, marker: Path, ready: Path, days: int = HISTORY_DAYS, report: Callable[[str], None] = lambda _: None
) -> None:
    """Prepare the demo, write the file `ready`, then send traffic for ever."""
    pages = build_pages()
    if not marker.exists():
        report(f"creating {len(pages)} pages and {days} days of history, at the first start only")
    while True:
        try:
            seed(api, pages, marker, days=days)
            demo_quests.seed(api)
            break
        except (urllib.error.URLError, OSError):
            time.sleep(1)
    wait_for_boards(api)
    write_private(ready, "")
    send_traffic(api, pages)
