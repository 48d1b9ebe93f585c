"""Nodes of one service: each is `plaudit up` on servers that all share; and the traffic that is sent to them."""

import json
import os
import secrets
import subprocess
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any, Self

import requests
import websocket

from app.run.ports import reserve_port
from tests import secrets_seen
from tests.committed_views import COMMITTED_VIEWS
from tests.live import Socket
from tests.secrets_seen import LOG_FOLDER
from tests.servers.postgres import Postgres
from tests.service import PLAUDIT, ROOT, Service, own_servers_env, plaudit

PAGES = [f"p{number}" for number in range(10)]
POINTS = 3
BOARD = {"scope": "tenant", "window": "7d", "metric": "likes"}


def shared_env(*, database: str, redis: str, **more: str) -> dict[str, str]:
    """What every node's environment must have in common."""
    secret = secrets.token_urlsafe(32)
    secrets_seen.SEEN.add(secret)
    return {"DATABASE_URL": database, "REDIS_URL": redis, "PLAUDIT_SECRET_KEY": secret, **more}


class Node(Service):
    """A machine of its own: API, sockets, a worker and cron."""

    def __init__(self, data_dir: Path, env: dict[str, str], *options: str) -> None:
        self.port, self.live_port = reserve_port(), reserve_port()
        self.env = {"PLAUDIT_LIVE_PORT": str(self.live_port), "PLAUDIT_WEB_PROCESSES": "1"} | env
        self._options = options
        self._start(data_dir)

    def _start(self, data_dir: Path) -> None:
        super().__init__(data_dir, "--port", str(self.port), *self._options, env=self.env, prepared=False)
        self.url = f"http://127.0.0.1:{self.port}"  # not the proxy's

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        if self.process.poll() is None:
            self.stop()
        self.close()

    def restart(self) -> None:
        """As a service manager does; returns when the node is ready again."""
        assert self.stop() == 0, self.log_text()[-2000:]
        self._start(self.data_dir)

    def kill(self) -> None:
        """All of its processes end at once, as if the machine had: they are tied to the first."""
        everything = self.everything()
        self.process.kill()
        for process in everything:
            process.wait(10)

    def boards_are_right(self) -> bool:
        """Whether `plaudit check` finds no difference, and nothing is due."""
        done = plaudit("check", "--json", data_dir=self.data_dir, env=self.env)
        if not done.stdout:
            return False
        report = json.loads(done.stdout)
        return bool(report["ok"]) and report["due"] == 0


class Process:
    """One process, started by its own command: `plaudit worker`, `plaudit web --port N`, …"""

    def __init__(self, *arguments: str, data_dir: Path, env: dict[str, str]) -> None:
        LOG_FOLDER.mkdir(parents=True, exist_ok=True)
        self.log = LOG_FOLDER / f"{arguments[0]}-{data_dir.parent.name}-{data_dir.name}.log"
        env = own_servers_env() | {"PLAUDIT_PARENT_PID": str(os.getpid())} | env
        command = [*PLAUDIT, "--data-dir", str(data_dir), *arguments]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, cwd=ROOT, env=env)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.process.terminate()
        self.process.wait(60)

    def log_text(self) -> str:
        return self.log.read_text(errors="replace")


class Client:
    """An application of the demo tenant, at the address of a node or of the proxy."""

    def __init__(self, url: str, ready: dict[str, Any], *, token: str | None = None) -> None:
        self.url = url
        self.auth = (ready["client_id"], ready["client_secret"])
        self.token = token or self.new_token()

    def new_token(self) -> str:
        answer = requests.post(
            f"{self.url}/oauth/token", data={"grant_type": "client_credentials"}, auth=self.auth, timeout=10
        )
        secrets_seen.collect(answer.json())
        return str(answer.json()["access_token"])

    def __call__(self, method: str, path: str, *, timeout_s: float = 10, **options: Any) -> requests.Response:
        headers = {"Authorization": f"Bearer {self.token}"}
        answer = requests.request(method, self.url + path, headers=headers, timeout=timeout_s, **options)
        if answer.content and answer.headers.get("Content-Type") == "application/json":
            secrets_seen.collect(answer.json())
        return answer

    def prepare(self) -> None:
        """Create the pages and the action that `Traffic` needs."""
        for page in PAGES:
            assert self("PUT", f"/api/v1/pages/{page}", json={"space": "s", "title": page, "url": f"/{page}"}).ok
        assert self("PUT", "/api/v1/actions/catalog/read", json={"points": POINTS}).ok

    def board(self, **board: Any) -> dict[str, Any]:
        answer = self("GET", "/api/v1/leaderboards", params=BOARD | board)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def values(self, **board: Any) -> dict[str, int]:
        """The value of each page on a board."""
        return {row["page"]["external_id"]: row["value"] for row in self.board(**board)["items"]}

    def follow(self, url: str | None = None, **board: Any) -> Socket:
        """A socket that follows a board, at this address or another node's."""
        ticket = self("POST", "/api/v1/live/tickets").json()["ticket"]
        address = (url or self.url).replace("http", "ws") + f"/ws/leaderboards?ticket={ticket}"
        socket = Socket(websocket.create_connection(address, timeout=5, suppress_origin=True))
        socket.send(op="subscribe", **(BOARD | board))
        socket.read_until("subscribed")
        return socket


class Traffic:
    """Callers that send views, likes and actions, each again and again until it is acknowledged: exactly once counts.

    `with` sends until the block ends, and then until everything that was sent is acknowledged.
    """

    def __init__(self, client: Client, *, callers: int = 6) -> None:
        self.client = client
        self.acknowledged: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self._run = secrets.token_hex(4)
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._callers = [threading.Thread(target=self._send, args=[number]) for number in range(callers)]

    def __enter__(self) -> Self:
        for caller in self._callers:
            caller.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._stopping.set()
        for caller in self._callers:
            caller.join()

    def wait_for(self, more: int) -> None:
        """Until this many more are acknowledged."""
        goal = self.acknowledged.total() + more
        deadline = time.monotonic() + 60
        while self.acknowledged.total() < goal:
            assert time.monotonic() < deadline, f"nothing is acknowledged: {self.refused}"
            time.sleep(0.01)

    def _send(self, caller: int) -> None:
        number = 0
        while not self._stopping.is_set():
            number += 1
            name = f"{self._run}-{caller}-{number}"
            page = f"/api/v1/pages/{PAGES[number % len(PAGES)]}"
            self._insist("view", "POST", f"{page}/views", json={"id": name})
            self._insist("like", "PUT", f"{page}/likes/{name}")
            action = {"type": "action", "action_type": "read", "user": f"u{caller}", "id": name}
            self._insist("action", "POST", "/api/v1/events", json={"events": [action]})

    def _insist(self, kind: str, method: str, path: str, **options: Any) -> None:
        while True:
            try:
                answer = self.client(method, path, timeout_s=5, **options)
                outcome = "ok" if answer.ok and not answer.json().get("rejected") else answer.text
            except requests.RequestException as error:
                outcome = type(error).__name__
            with self._lock:
                if outcome == "ok":
                    self.acknowledged[kind] += 1
                    return
                self.refused[outcome] += 1
            time.sleep(0.05)


def counted(server: Postgres) -> Counter[str]:
    """How many views, likes and actions PostgreSQL has."""
    ((views, likes, points),) = server.execute(
        f"SELECT (SELECT coalesce(sum(views), 0) FROM {COMMITTED_VIEWS} v), (SELECT count(liked_at) FROM page_likes),"
        " (SELECT coalesce(sum(delta), 0) FROM score_ledger)",
        database="plaudit",
    )
    return Counter(view=int(views), like=int(likes), action=int(points) // POINTS)
