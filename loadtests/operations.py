"""The table of operations: what `make bench` measures, what each is compared with, and what it should reach.

Each is sent over the same number of connections to a service with its workers running. A pool is made anew for every
measurement, so that no id, user or like of an earlier one comes again.
"""

import random
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

import orjson
import requests

from analytics.boards.names import Board
from analytics.metrics import LIKES, METRICS, SCORE, VIEWS
from analytics.windows import Window
from loadtests import floors, rows
from loadtests.blast import request
from loadtests.floors import BATCH
from loadtests.generator import Sample
from loadtests.pools import NUMBER, UNIQUE, Pool
from loadtests.target import Target

LIKED_PAGES = 1_000
RANKED_PAGES = 10_000
FEW = 8
# Coprime to the number of users: likes of one page are by different users, also in different measurements.
USER_STRIDE = 7_919
VIEW_POOL = 5_000
BATCH_POOL = 100
BUSY_VIEWS_PER_S = 500
TOP = "/api/v1/leaderboards?scope=tenant&window={}&metric={}&limit=10"
RANK = "/api/v1/leaderboards/rank?scope=tenant&window=7d&metric=score&around=5&member=p{}"


def get(target: Target, path: str, **more: str) -> bytes:
    return request("GET", path, headers={"Authorization": f"Bearer {target.client_token()}", **more})


def send(method: str, path: str, token: str, body: object = None) -> bytes:
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    return request(method, path, headers=headers, body=b"" if body is None else orjson.dumps(body))


def boards() -> list[str]:
    """The paths of twelve boards of the tenant's pages."""
    return [TOP.format(window, metric) for metric in (SCORE, VIEWS, LIKES) for window in Window]


def popular_page(pages: int) -> str:
    """A page as readers choose it: by Zipf's law with the exponent of the history."""
    return f"p{int(pages * random.random() ** 5):06d}"


def top(target: Target) -> Pool:
    return Pool([get(target, path) for path in boards()])


def unchanged_top(target: Target) -> Pool:
    headers = {"Authorization": f"Bearer {target.client_token()}"}
    tags = {
        path: requests.get(target.service.url + path, headers=headers, timeout=10).headers["ETag"] for path in boards()
    }
    return Pool([get(target, path, **{"If-None-Match": tag}) for path, tag in tags.items()])


def few_ranks(target: Target) -> Pool:
    return Pool([get(target, RANK.format(f"{page * 100:06d}")) for page in range(FEW)])


def many_ranks(target: Target) -> Pool:
    return Pool([get(target, RANK.format(NUMBER))], modulus=min(RANKED_PAGES, target.tenant.pages))


def stats(target: Target) -> Pool:
    return Pool([get(target, f"/api/v1/pages/p{NUMBER}/stats")], modulus=min(LIKED_PAGES, target.tenant.pages))


def views(target: Target) -> Pool:
    token, run = target.client_token(), uuid.uuid4().hex
    paths = [f"/api/v1/pages/{popular_page(target.tenant.pages)}/views" for _ in range(VIEW_POOL)]
    return Pool([send("POST", path, token, {"id": f"{run}-{UNIQUE}"}) for path in paths])


def likes(target: Target) -> Pool:
    token, pages = target.client_token(), min(LIKED_PAGES, target.tenant.pages)
    return Pool(
        [send("PUT", f"/api/v1/pages/p{page:06d}/likes/u{NUMBER}", token) for page in range(1, pages)],
        modulus=target.tenant.users,
        stride=USER_STRIDE,
        offset=target.measurement,
    )


def hot_likes(target: Target) -> Pool:
    """All for one page; in the next measurement for another one, which has not used up its users."""
    page = f"p{1 + target.measurement % 500:06d}"
    return Pool(
        [send("PUT", f"/api/v1/pages/{page}/likes/u{NUMBER}", target.client_token())], modulus=target.tenant.users
    )


def actions(target: Target) -> Pool:
    """By many users for themselves, each action with an id of its own."""
    run, now = uuid.uuid4().hex, datetime.now(UTC).isoformat()
    body = {"actionId": f"{run[:8]}-0000-4000-8000-{UNIQUE}", "actionType": rows.ACTION, "timestamp": now}
    return Pool([send("POST", "/api/v1/scores/update", token, body) for token in target.user_tokens()])


def action_batches(target: Target) -> Pool:
    token, run, users = target.client_token(), uuid.uuid4().hex, target.tenant.users

    def batch() -> bytes:
        payees = random.sample(range(users), min(BATCH, users))
        events = [
            {"type": "action", "user": f"u{user:06d}", "action_type": rows.ACTION, "id": f"{run}-{UNIQUE}-{place}"}
            for place, user in enumerate(payees)
        ]
        return send("POST", "/api/v1/events", token, {"events": events})

    return Pool([batch() for _ in range(BATCH_POOL)])


def view_batches(target: Target, *, with_ids: bool) -> Pool:
    token, run, pages = target.client_token(), uuid.uuid4().hex, target.tenant.pages

    def batch() -> bytes:
        events = [{"type": "view", "page": popular_page(pages)} for _ in range(BATCH)]
        if with_ids:
            events = [{**event, "id": f"{run}-{UNIQUE}-{place}"} for place, event in enumerate(events)]
        return send("POST", "/api/v1/events", token, {"events": events})

    return Pool([batch() for _ in range(BATCH_POOL)])


@dataclass(frozen=True)
class Floor:
    """Something to compare with that is not a request to a bare server."""

    name: str
    title: str
    measure: Callable[[Target, float], Sample]


def _sql(script: Callable[[Target], str], target: Target, seconds: float) -> Sample:
    return floors.raw_sql(target.addresses["database_url"], script(target), seconds=seconds)


def _zrevrange(target: Target, seconds: float) -> Sample:
    board = Board(target.tenant.id, "tenant", Window.WEEK, METRICS["score"])
    return floors.raw_redis(target.addresses["redis_url"], board.key, seconds=seconds)


WSGI, FLASK = "wsgi", "flask"
REDIS = Floor("redis", "raw ZREVRANGE of the top 10, pipelined", _zrevrange)
SQL_VIEWS = Floor(
    "sql-views",
    "raw SQL, 100 views with ids in a transaction",
    partial(_sql, lambda t: rows.raw_views(t.tenant.id, t.tenant.pages, with_ids=True)),
)
SQL_PLAIN_VIEWS = Floor(
    "sql-plain-views",
    "raw SQL, 100 views without ids in a transaction",
    partial(_sql, lambda t: rows.raw_views(t.tenant.id, t.tenant.pages, with_ids=False)),
)
SQL_ACTIONS = Floor(
    "sql-actions",
    "raw SQL, 100 actions in a transaction",
    partial(_sql, lambda t: rows.raw_actions(t.tenant.id, t.tenant.users)),
)


@dataclass(frozen=True)
class Operation:
    name: str
    title: str
    pool: Callable[[Target], Pool]
    # What the ratio of the last column is against: the bare Flask route, or raw SQL of the same rows.
    floor: Floor | None = None
    at_least: float | None = None
    aim: float | None = None
    # Events in one request: figures are events per second.
    events: int = 1
    writes: bool = False
    # Views per second that are sent at the same time, so that the boards change.
    background_views: int = 0

    @property
    def floor_name(self) -> str:
        return self.floor.name if self.floor is not None else FLASK


OPERATIONS = (
    Operation("top10", "top 10 of 12 boards in turn, at rest", top, at_least=2.0, aim=3.5),
    Operation(
        "top10-busy",
        f"the same under {BUSY_VIEWS_PER_S} views/s",
        top,
        at_least=1.0,
        aim=2.0,
        background_views=BUSY_VIEWS_PER_S,
        writes=True,
    ),
    Operation("etag", "top 10 with its ETag: 304", unchanged_top),
    Operation("rank-few", f"rank ± 5 of the same {FEW} pages", few_ranks, at_least=1.5, aim=2.5),
    Operation("rank-many", f"rank ± 5 of {RANKED_PAGES:,} pages", many_ranks, at_least=0.4, aim=0.6),
    Operation("stats", f"page stats of {LIKED_PAGES:,} pages", stats),
    Operation("view", "single durable view with id", views, at_least=0.35, aim=0.5, writes=True),
    Operation("like", f"single like, {LIKED_PAGES:,} pages", likes, at_least=0.25, aim=0.4, writes=True),
    Operation("like-hot", "single like, one hot page", hot_likes, at_least=0.2, aim=0.4, writes=True),
    Operation("action", "one action with full ledger", actions, at_least=0.15, aim=0.25, writes=True),
    Operation(
        "actions", f"batches of {BATCH} actions with ids", action_batches, floor=SQL_ACTIONS, events=BATCH, writes=True
    ),
    Operation(
        "views",
        f"batches of {BATCH} views with ids",
        partial(view_batches, with_ids=True),
        floor=SQL_VIEWS,
        at_least=0.6,
        aim=0.8,
        events=BATCH,
        writes=True,
    ),
    Operation(
        "plain-views",
        f"batches of {BATCH} views without ids",
        partial(view_batches, with_ids=False),
        floor=SQL_PLAIN_VIEWS,
        events=BATCH,
        writes=True,
    ),
)
BY_NAME = {operation.name: operation for operation in OPERATIONS}
