"""Load as tenants cause it: `make loadtest`, or `locust -f loadtests/locustfile.py --host http://127.0.0.1:8000`.

Credentials come from PLAUDIT_CLIENT_ID and PLAUDIT_CLIENT_SECRET. Loopback only, but for `make loadtest HOST=…`, which
has asked first, and removes what is created under its prefix.
"""

import json
import os
import random
import time
import uuid
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

import gevent
import websocket
from locust import FastHttpUser, between, events, task

from loadtests import footprint
from loadtests.instance import LOOPBACK

# On an instance that others use: what `loadtests.footprint` has created there, and removes.
PREFIX = os.environ.get("PLAUDIT_LOADTEST_PREFIX", "load")
IS_OURS = PREFIX == "load"
PAGES = 500 if IS_OURS else footprint.PAGES
READERS = 5000 if IS_OURS else footprint.READERS
READER = "reader" if IS_OURS else f"{PREFIX}-reader"
SPACE = "space" if IS_OURS else footprint.PREFIX
MAX_BOARD_PAGES = 20
WINDOWS = ("1d", "7d", "30d", "all")
METRICS = ("likes", "views", "score")


@events.init.add_listener
def check_target(environment, **_kwargs):  # type: ignore[no-untyped-def]
    is_loopback = urlsplit(environment.host or "").hostname in LOOPBACK
    if not is_loopback and environment.host != os.environ.get("PLAUDIT_LOADTEST_HOST"):
        raise SystemExit("Only on loopback (--host http://127.0.0.1:8000). Elsewhere: make loadtest HOST=https://…")
    if not os.environ.get("PLAUDIT_CLIENT_ID") or not os.environ.get("PLAUDIT_CLIENT_SECRET"):
        raise SystemExit("Set PLAUDIT_CLIENT_ID and PLAUDIT_CLIENT_SECRET")


@events.quitting.add_listener
def save_figures(environment, **_kwargs):  # type: ignore[no-untyped-def]
    """What `loadtests.run` judges. (Locust's own files may be a second old at the end.)"""
    file, total = os.environ.get("PLAUDIT_LOADTEST_FIGURES"), environment.stats.total
    if file:
        p99_ms = total.get_response_time_percentile(0.99)
        figures = {"requests": total.num_requests, "failures": total.num_failures, "p99_ms": p99_ms}
        Path(file).write_text(json.dumps(figures))


def popular_page() -> str:
    """A few pages have most of the readers."""
    return f"{PREFIX}-{min(int(random.paretovariate(0.8)) - 1, PAGES - 1)}"


class Client(FastHttpUser):  # type: ignore[misc]
    """A client with the tenant's token."""

    abstract = True
    insecure = False  # certificates are checked
    wait_time = between(0.0, 0.02)

    def on_start(self) -> None:
        answer = self.client.post(
            "/oauth/token",
            data={
                "grant_type": "client_credentials",
                "client_id": os.environ["PLAUDIT_CLIENT_ID"],
                "client_secret": os.environ["PLAUDIT_CLIENT_SECRET"],
            },
        )
        self.headers = {"Authorization": f"Bearer {answer.json()['access_token']}"}


class TenantApp(Client):
    """A wiki's server: single views, some likes, a few batches."""

    weight = 3

    def on_start(self) -> None:
        super().on_start()
        for number in random.sample(range(PAGES), 50) if IS_OURS else ():
            body = {"space": f"space-{number % 5}", "title": f"Page {number}", "url": f"/load/{number}"}
            self.client.put(f"/api/v1/pages/load-{number}", json=body, headers=self.headers, name="PUT page")

    @task(20)
    def view(self) -> None:
        with self.client.post(
            f"/api/v1/pages/{popular_page()}/views",
            json={"id": uuid.uuid4().hex},
            headers=self.headers,
            name="POST view",
            catch_response=True,
        ) as answer:
            if answer.status_code == 404:  # this page was not created yet
                answer.success()

    @task(4)
    def like(self) -> None:
        method = self.client.put if random.random() < 0.8 else self.client.delete
        path = f"/api/v1/pages/{popular_page()}/likes/{READER}-{random.randrange(READERS)}"
        with method(path, headers=self.headers, name="PUT/DELETE like", catch_response=True) as answer:
            if answer.status_code == 404:
                answer.success()

    @task(1)
    def batch(self) -> None:
        batch = [{"type": "view", "page": popular_page(), "id": uuid.uuid4().hex} for _ in range(100)]
        self.client.post("/api/v1/events", json={"events": batch}, headers=self.headers, name="POST events x100")


class Player(Client):
    """A user of the tenant: claims actions, some of them twice, and reads the scoreboard and their own rank."""

    def on_start(self) -> None:
        super().on_start()
        terms = {"points": 5}
        self.client.put("/api/v1/actions/catalog/load", json=terms, headers=self.headers, name="PUT action")
        settings = {"limits": {"score_updates_per_minute": 10_000}, "integrity": {"points_per_hour": 1_000_000_000}}
        self.client.patch("/api/v1/settings", json=settings, headers=self.headers, name="PATCH settings")
        login = {"tenant": "demo", "username": f"p_{uuid.uuid4().hex[:12]}", "password": uuid.uuid4().hex}
        self.client.post("/api/v1/auth/register", json={**login, "email": f"{login['username']}@load.example"})
        answer = self.client.post("/api/v1/auth/login", json=login)
        self.headers = {"Authorization": f"Bearer {answer.json()['access_token']}"}
        self.last: dict[str, str] | None = None

    @task(10)
    def act(self) -> None:
        again = self.last is not None and random.random() < 0.1
        now = datetime.now(UTC).isoformat()
        body = self.last if again else {"actionId": str(uuid.uuid4()), "actionType": "load", "timestamp": now}
        self.last = body
        self.client.post("/api/v1/scores/update", json=body, headers=self.headers, name="POST scores/update")

    @task(3)
    def scoreboard(self) -> None:
        self.client.get("/api/v1/leaderboards?scope=users&window=1d", headers=self.headers, name="GET scoreboard")

    @task(2)
    def own_rank(self) -> None:
        path = "/api/v1/leaderboards/rank?scope=users&window=all&member=me&around=2"
        self.client.get(path, headers=self.headers, name="GET own rank")


class AppActions(Client):
    """A server that says what its users did, and shows the scoreboard: the players of an instance that others use."""

    @task(10)
    def act(self) -> None:
        user = f"{READER}-{random.randrange(READERS)}"
        action = {"type": "action", "action_type": PREFIX, "user": user, "id": uuid.uuid4().hex}
        options = {"headers": self.headers, "name": "POST action", "catch_response": True}
        with self.client.post("/api/v1/events", json={"events": [action]}, **options) as answer:
            if answer.status_code == 202 and answer.json()["rejected"]:
                answer.failure(answer.json()["rejected"][0]["code"])

    @task(3)
    def scoreboard(self) -> None:
        self.client.get("/api/v1/leaderboards?scope=users&window=1d", headers=self.headers, name="GET scoreboard")


class Quester(Client):
    """The readers of a wiki, who play quests: one offers, two try to claim, who gets it submits, another attests."""

    @task(5)
    def cycle(self) -> None:
        creator, *rivals, attester = (f"{READER}-{number}" for number in random.sample(range(READERS), 4))
        quest = self.create(creator)
        performer = self.claimed_by(quest, rivals) if quest else None
        if performer and self.take(quest, "submit", {"user": performer, "submission": "Done as described."}):
            self.take(quest, "attestations", {"user": attester, "rating": random.randint(3, 5)})

    @task(2)
    def browse(self) -> None:
        status = random.choice(["OPEN", "PENDING_REVIEW", "COMPLETE"])
        self.client.get(f"/api/v1/quests?status={status}", headers=self.headers, name="GET quests")

    @task(1)
    def board(self) -> None:
        self.client.get("/api/v1/leaderboards?scope=users&metric=xp", headers=self.headers, name="GET board of XP")

    def create(self, creator: str) -> str:
        """The new quest's id; empty, if the creator has offered enough for today."""
        body = {"user": creator, "title": "Load", "description": "A quest of the load test.", "tags": ["load"]}
        rewards = {"reward_xp": random.randrange(10, 500, 10), "reward_reputation": random.randint(1, 10)}
        path, options = "/api/v1/quests", {"headers": self.headers, "name": "POST quest", "catch_response": True}
        with self.client.post(path, json={**body, **rewards}, **options) as answer:
            if answer.status_code == 403:
                answer.success()
            return str(answer.json()["id"]) if answer.status_code == 201 else ""

    def claimed_by(self, quest: str, rivals: list[str]) -> str | None:
        """Who gets it, of several who try at once: one, or nobody if each has enough open claims."""
        trying = [gevent.spawn(self.take, quest, "claim", {"user": rival}) for rival in rivals]
        gevent.joinall(trying)
        winners = [rival for rival, tried in zip(rivals, trying, strict=True) if tried.value]
        if len(winners) > 1:
            error = RuntimeError(f"{len(winners)} have claimed one quest")
            events.request.fire(
                request_type="POST", name="one claim", response_time=0, response_length=0, exception=error
            )
        return winners[0] if winners else None

    def take(self, quest: str, step: str, body: dict[str, object]) -> bool:
        """Whether the step was taken. Somebody was quicker, or a rule does not allow it: no failure."""
        path, options = f"/api/v1/quests/{quest}/{step}", {"headers": self.headers, "catch_response": True}
        with self.client.post(path, json=body, name=f"POST quest/{step}", **options) as answer:
            if answer.status_code in {403, 409}:
                answer.success()
            return answer.status_code in {200, 201}


class BoardReader(Client):
    """A dashboard: boards by space, window and metric, most of them read again; sometimes a rank or a whole board."""

    tags: dict[str, str]

    def on_start(self) -> None:
        super().on_start()
        self.tags = {}

    def board(self) -> str:
        scope = random.choice(["tenant", *(f"space:{SPACE}-{number}" for number in range(5))])
        return f"scope={scope}&window={random.choice(WINDOWS)}&metric={random.choice(METRICS)}"

    @task(10)
    def top(self) -> None:
        path = f"/api/v1/leaderboards?{self.board()}"
        headers = {**self.headers, **({"If-None-Match": self.tags[path]} if path in self.tags else {})}
        answer = self.client.get(path, headers=headers, name="GET board")
        if answer.status_code == 200:
            self.tags[path] = answer.headers["ETag"]

    @task(2)
    def rank(self) -> None:
        path = f"/api/v1/leaderboards/rank?{self.board()}&member={popular_page()}&around=2"
        with self.client.get(path, headers=self.headers, name="GET rank", catch_response=True) as answer:
            if answer.status_code == 404:
                answer.success()

    @task(1)
    def all_pages(self) -> None:
        path = first = f"/api/v1/leaderboards?{self.board()}&limit=100"
        for _ in range(MAX_BOARD_PAGES):
            answer = self.client.get(path, headers=self.headers, name="GET board, page by page")
            following = answer.json()["next_cursor"] if answer.status_code == 200 else None
            if not following:
                break
            path = f"{first}&cursor={following}"


class Watcher(Client):
    """An open dashboard: a socket that follows a few boards, and sends a ping from time to time."""

    wait_time = between(1, 3)

    def on_start(self) -> None:
        super().on_start()
        self.open()
        self.reading = gevent.spawn(self.read)

    def on_stop(self) -> None:
        self.reading.kill()
        self.socket.close()

    def open(self) -> None:
        answer = self.client.post("/api/v1/live/tickets", headers=self.headers, name="POST ticket").json()
        began = time.perf_counter()
        address = answer["live_url"].replace("http", "ws", 1)
        self.socket = websocket.create_connection(f"{address}/ws/leaderboards?ticket={answer['ticket']}", timeout=30)
        self.report("open", began)
        self.pinged: float | None = None
        for scope in ("tenant", f"space:{SPACE}-{random.randrange(5)}"):
            board = {"scope": scope, "window": random.choice(WINDOWS), "metric": random.choice(METRICS)}
            self.socket.send(json.dumps({"op": "subscribe", **board}))

    def read(self) -> None:
        """Read frames, and report gaps in their sequence numbers: no frame may be lost."""
        last = 0
        while True:
            message = json.loads(self.socket.recv())
            gap = None if message["seq"] == last + 1 else RuntimeError(f"{last} was followed by {message['seq']}")
            last = message["seq"]
            if message["type"] == "pong" and self.pinged is not None:
                self.report("ping to pong", self.pinged, gap)
            elif message["type"] == "error":
                self.report("error", time.perf_counter(), RuntimeError(message["code"]))
            elif gap is not None:
                self.report("gap", time.perf_counter(), gap)

    @task
    def ping(self) -> None:
        self.pinged = time.perf_counter()
        self.socket.send('{"op": "ping"}')

    def report(self, name: str, began: float, error: Exception | None = None) -> None:
        took_ms = (time.perf_counter() - began) * 1000
        events.request.fire(request_type="WS", name=name, response_time=took_ms, response_length=0, exception=error)
