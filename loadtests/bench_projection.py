"""Benchmarks of boards: how long until a like is on a board, how fast boards are read, what a projection costs."""

import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import requests
from redis import Redis

from analytics.boards import projection
from analytics.boards.names import boards_in
from app.cli.common import connect_redis, migrated_database
from app.run.data_folder import read_secrets
from app.run.server_roles import SUPERUSER_LOGIN
from loadtests.blast import blast, request
from loadtests.service import Service, running_service
from tenants.db import utcnow

BOARD = "/api/v1/leaderboards?scope=tenant&window=7d&metric=likes&limit=10"
STALE = 1_000
# Workers and their connections are long-lived, so measure them after a warm-up.
WARM_UP = 40
ROUNDS = 15
SMALL = 10_000

# The columns of page_stats that the statements below fill, in their order.
NUMBERS = [f"{metric}_{window}" for metric in ("likes", "views", "score") for window in ("1d", "7d", "30d", "all")]


def latency(seconds: float) -> None:
    """From a like's 200 to its value on the board, during the demo's own traffic."""
    with demo("--demo") as service:
        headers = {"Authorization": f"Bearer {service.token()}"}
        listed = requests.get(f"{service.url}/api/v1/pages?limit=50", headers=headers, timeout=10).json()
        pages = [page["external_id"] for page in listed["items"]]
        took: list[float] = []
        end = time.monotonic() + max(seconds, 20)
        with requests.Session() as session:
            session.headers.update(headers)
            while time.monotonic() < end:
                page = random.choice(pages)
                liker = f"bench-{random.getrandbits(40)}"
                rank = f"{service.url}/api/v1/leaderboards/rank?scope=tenant&window=1d&metric=likes&member={page}"
                before = session.get(rank, timeout=10).json()["value"]
                session.put(f"{service.url}/api/v1/pages/{page}/likes/{liker}", timeout=10).raise_for_status()
                began = time.perf_counter()
                while session.get(rank, timeout=10).json()["value"] <= before:
                    time.sleep(0.002)
                took.append(time.perf_counter() - began)
                time.sleep(random.uniform(0, 0.1))
        took.sort()
        p50, p99 = took[len(took) // 2] * 1000, took[int(len(took) * 0.99)] * 1000
        print(f"From a like's answer to the board: {len(took)} likes, p50 {p50:.0f} ms, p99 {p99:.0f} ms")


def reads(seconds: float) -> None:
    """Reading a board's top ten, against a bare Flask route and one ZREVRANGE in each request."""
    from loadtests.bench import BARE_GET, bare_route

    with demo("--demo", "--no-traffic") as service:
        port = int(service.url.rsplit(":", 1)[1])
        headers = {"Authorization": f"Bearer {service.token()}"}
        for number in range(50):
            body = {"space": "s", "title": "t", "url": f"/{number}"}
            requests.put(f"{service.url}/api/v1/pages/p{number}", json=body, headers=headers, timeout=10)
            requests.put(f"{service.url}/api/v1/pages/p{number}/likes/u{number}", headers=headers, timeout=10)
        time.sleep(2)
        get = request("GET", BOARD, headers=headers)
        tag = requests.get(service.url + BOARD, headers=headers, timeout=10).headers["ETag"]
        conditional = request("GET", BOARD, headers={**headers, "If-None-Match": tag})
        with bare_route() as bare_port:
            bare = blast(bare_port, lambda *_: BARE_GET, seconds=seconds)
            board = blast(port, lambda *_: get, seconds=seconds)
            unchanged = blast(port, lambda *_: conditional, seconds=seconds)
        print("Reading a board, 64 connections")
        print(f"  {'a bare Flask route, GET':<34}{bare}")
        print(f"  {'GET /leaderboards, top 10':<34}{board}   {board.per_second / bare.per_second:.2f} of it")
        print(f"  {'the same with its ETag: 304':<34}{unchanged}   {unchanged.per_second / bare.per_second:.2f} of it")


def costs(seconds: float, *, large: int = 1_000_000) -> None:
    """What projecting 1,000 stale pages costs: with few and with many pages, and compared with the minimum."""
    del seconds
    with tempfile.TemporaryDirectory(prefix="plaudit-bench-") as folder:
        Path(folder).chmod(0o711)
        with migrated_database(Path(folder) / "data", create=True) as settings:
            connect_redis(settings, boards_timeout_s=30)
            owner = psycopg.connect(
                str(settings.database_url),
                user=SUPERUSER_LOGIN,  # may disable foreign key checks
                password=read_secrets(Path(folder) / "data")["superuser_password"],
                autocommit=True,
            )
            redis = Redis.from_url(str(settings.redis_url))
            sizes = {"small": SMALL, "large": large}
            for name, pages in sizes.items():
                began = time.perf_counter()
                fill(owner, name, pages)
                filled = time.perf_counter() - began
                done = projection.project_all(name, now=utcnow)
                entries = sum(redis.zcard(board.key) for board in done.rebuilt)
                rebuilt = time.perf_counter() - began - filled
                print(
                    f"  {pages:>9,} pages: created in {filled:.0f} s; {len(done.rebuilt)} boards, {entries:,} entries"
                    f" rebuilt in {rebuilt:.1f} s, {entries / rebuilt:,.0f} entries/s"
                )
            print(f"Projecting {STALE:,} stale pages, medians of {ROUNDS} rounds in turn")
            for pick in (by_popularity, uniformly):
                took: dict[str, list[float]] = {"small": [], "large": [], "minimum": []}
                for _ in range(WARM_UP + ROUNDS):
                    for name in sizes:
                        make_stale(owner, name, pick)
                        took[name].append(timed(partial(projection.project_step, name, now=utcnow())))
                    page_ids = make_stale(owner, "small", pick, outbox=False)
                    took["minimum"].append(timed(partial(minimal_projection, owner, redis, "small", page_ids)))
                small, many, raw = (statistics.median(took[name][WARM_UP:]) * 1000 for name in took)
                print(f"  stale pages picked {pick.__name__.replace('_', ' ')}")
                print(f"    {SMALL:>9,} pages: {small:7.1f} ms")
                print(f"    {large:>9,} pages: {many:7.1f} ms   {many / small:.2f} times as long")
                speed = f"the projection has {raw / small:.2f} of that speed"
                print(f"    one statement and raw pipelines: {raw:.1f} ms; {speed}")
            owner.close()
            redis.close()


def fill(owner: "psycopg.Connection[Any]", tenant: str, pages: int) -> None:
    """Create pages with thirty days of history, and the numbers that a projection would have computed."""
    owner.execute("SET session_replication_role = replica")  # no foreign key checks for ten million rows
    owner.execute("INSERT INTO tenants (id, name, created_at) VALUES (%s, %s, now())", [tenant, tenant])
    owner.execute(
        """
        INSERT INTO pages (tenant_id, external_id, space_key, title, url, created_at, updated_at)
        SELECT %s, 'p' || n, 's' || n %% 10, 'Page ' || n, '/' || n, now(), now() FROM generate_series(1, %s) n
        """,
        [tenant, pages],
    )
    owner.execute("VACUUM ANALYZE pages")
    owner.execute(
        """
        INSERT INTO page_views_hour (tenant_id, page_id, bucket_hour, views)
        SELECT tenant_id, id, date_trunc('hour', now()) - h * interval '67 hours', 1 + (id + h) %% 50
        FROM pages, generate_series(0, 10) h WHERE tenant_id = %s
        """,
        [tenant],
    )
    owner.execute("VACUUM ANALYZE page_views_hour")
    owner.execute(
        """
        INSERT INTO page_counters (tenant_id, page_id, views)
        SELECT tenant_id, page_id, sum(views) FROM page_views_hour WHERE tenant_id = %s GROUP BY tenant_id, page_id
        """,
        [tenant],
    )
    owner.execute("VACUUM ANALYZE page_counters")
    owner.execute(
        f"""
        INSERT INTO page_stats (tenant_id, page_id, space_key, is_public, is_shared, page_updated_at, computed_at,
                                {", ".join(NUMBERS)})
        SELECT p.tenant_id, p.id, p.space_key, false, false, p.updated_at, now(), 0, 0, 0, 0,
               c.views / 10, c.views / 3, c.views, c.views, ln(1 + c.views / 10), ln(1 + c.views / 3), ln(1 + c.views),
               ln(1 + c.views)
        FROM pages p JOIN page_counters c ON c.tenant_id = p.tenant_id AND c.page_id = p.id WHERE p.tenant_id = %s
        """,  # noqa: S608  our own names
        [tenant],
    )
    owner.execute("VACUUM ANALYZE page_stats")


def uniformly(pages: int) -> set[int]:
    return set(random.sample(range(pages), STALE))


def by_popularity(pages: int) -> set[int]:
    """As views make pages stale: by the distribution of the load test, with the popular pages spread over all ids."""
    picked: set[int] = set()
    while len(picked) < STALE:
        rank = min(int(random.paretovariate(0.8)) - 1, pages - 1)
        picked.add(rank * 7_919 % pages)
    return picked


def make_stale(
    owner: "psycopg.Connection[Any]", tenant: str, pick: Callable[[int], set[int]], *, outbox: bool = True
) -> list[int]:
    """Add a view to a thousand pages."""
    rows = owner.execute("SELECT min(id), max(id) FROM pages WHERE tenant_id = %s", [tenant]).fetchone()
    assert rows is not None
    page_ids = sorted(rows[0] + place for place in pick(rows[1] + 1 - rows[0]))
    owner.execute(
        """
        INSERT INTO page_views_hour AS b (tenant_id, page_id, bucket_hour, views)
        SELECT %s, p, date_trunc('hour', now()), 1 FROM unnest(%s::bigint[]) p
        ON CONFLICT (tenant_id, page_id, bucket_hour) DO UPDATE SET views = b.views + 1
        """,
        [tenant, page_ids],
    )
    owner.execute(
        "UPDATE page_counters SET views = views + 1 WHERE tenant_id = %s AND page_id = ANY(%s)", [tenant, page_ids]
    )
    if outbox:
        owner.execute(
            "INSERT INTO outbox (tenant_id, kind, member) SELECT %s, 'page', p::text FROM unnest(%s::bigint[]) p",
            [tenant, page_ids],
        )
    return page_ids


def minimal_projection(owner: "psycopg.Connection[Any]", redis: "Redis", tenant: str, page_ids: list[int]) -> None:
    """The minimum: one statement that computes and stores, and the same values written to the same boards."""
    rows = owner.execute(_MINIMAL_PROJECTION, {"tenant": tenant, "pages": page_ids}).fetchall()
    with redis.pipeline(transaction=False) as pipe:
        for scope in ["tenant", *(f"space:s{number}" for number in range(10))]:
            members = [row for row in rows if scope in {"tenant", f"space:{row[1]}"}]
            for board in boards_in(tenant, scope):
                if board.metric.name in {"views", "score"} and members:
                    place = 2 + NUMBERS[4:].index(f"{board.metric}_{board.window}")
                    pipe.zadd(board.key, {str(row[0]): row[place] for row in members})
        pipe.execute()


_MINIMAL_PROJECTION = """
    INSERT INTO page_stats AS s (tenant_id, page_id, space_key, is_public, is_shared, page_updated_at, computed_at,
        likes_1d, likes_7d, likes_30d, likes_all, views_1d, views_7d, views_30d, views_all,
        score_1d, score_7d, score_30d, score_all)
    SELECT p.tenant_id, p.id, p.space_key, false, false, p.updated_at, now(), 0, 0, 0, 0, v.d1, v.d7, v.d30, c.views,
        ln(1 + v.d1), ln(1 + v.d7), ln(1 + v.d30), ln(1 + c.views)
    FROM pages p JOIN page_counters c ON c.tenant_id = p.tenant_id AND c.page_id = p.id
    CROSS JOIN LATERAL (
        SELECT COALESCE(sum(views) FILTER (WHERE bucket_hour > now() - interval '1 day'), 0) AS d1,
               COALESCE(sum(views) FILTER (WHERE bucket_hour > now() - interval '7 days'), 0) AS d7,
               COALESCE(sum(views), 0) AS d30
        FROM page_views_hour b WHERE b.tenant_id = p.tenant_id AND b.page_id = p.id
        AND bucket_hour > now() - interval '30 days') v
    WHERE p.tenant_id = %(tenant)s AND p.id = ANY(%(pages)s)
    ON CONFLICT (tenant_id, page_id) DO UPDATE SET views_1d = EXCLUDED.views_1d, views_7d = EXCLUDED.views_7d,
        views_30d = EXCLUDED.views_30d, views_all = EXCLUDED.views_all, score_1d = EXCLUDED.score_1d,
        score_7d = EXCLUDED.score_7d, score_30d = EXCLUDED.score_30d, score_all = EXCLUDED.score_all,
        computed_at = EXCLUDED.computed_at
    RETURNING page_id, space_key, views_1d, views_7d, views_30d, views_all, score_1d, score_7d, score_30d, score_all
"""


def timed(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


@contextmanager
def demo(*options: str) -> Iterator[Service]:
    with tempfile.TemporaryDirectory(prefix="plaudit-bench-") as folder:
        Path(folder).chmod(0o711)
        with running_service(Path(folder) / "data", *options) as service:
            yield service
