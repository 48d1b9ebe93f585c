"""What a projection costs: with few and with many pages, and compared with the least that it could do."""

import random
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import psycopg
from redis import Redis

from analytics.boards import projection
from analytics.boards.names import boards_in
from app.cli.common import connect_redis, migrated_database
from loadtests import dataset
from tenants.db import utcnow
from tenants.redis import make_client

STALE = 1_000
# Workers and their connections are long-lived, so measure them after a warm-up.
WARM_UP = 40
ROUNDS = 15
SMALL, LARGE, MINIMUM = "pages-10k", "pages-1m", "minimum"

# The columns of page_stats that the statement below fills, in their order.
NUMBERS = [f"{metric}_{window}" for metric in ("likes", "views", "score") for window in ("1d", "7d", "30d", "all")]


def projection_costs(seconds: float) -> None:
    """What projecting 1,000 stale pages costs: with few and with many pages, and compared with the minimum."""
    del seconds
    with dataset.copy_of(dataset.BY_PAGES) as data_dir, migrated_database(data_dir) as settings:
        connect_redis(settings, boards_timeout_s=30)
        with (
            psycopg.connect(str(settings.database_url), autocommit=True) as owner,
            make_client(str(settings.redis_url), timeout_s=30) as redis,
        ):
            for name in (SMALL, LARGE):
                began = time.perf_counter()
                done = projection.project_all(name, now=utcnow)
                took = time.perf_counter() - began
                entries = sum(redis.zcard(board.key) for board in done.rebuilt)
                print(
                    f"  {dataset.PAGES_OF[name]:>9,} pages: {len(done.rebuilt)} boards, {entries:,} entries rebuilt in"
                    f" {took:.1f} s, {entries / took:,.0f} entries/s"
                )
            print(f"Projecting {STALE:,} stale pages, medians of {ROUNDS} rounds in turn")
            for pick in (by_popularity, uniformly):
                print_costs(pick, measure(owner, redis, pick))


def measure(owner: "psycopg.Connection[Any]", redis: "Redis", pick: Callable[[int], set[int]]) -> dict[str, float]:
    """Milliseconds for the small tenant, the large one, and the minimum."""
    took: dict[str, list[float]] = {SMALL: [], LARGE: [], MINIMUM: []}
    for _ in range(WARM_UP + ROUNDS):
        for name in (SMALL, LARGE):
            make_stale(owner, name, pick)
            took[name].append(timed(partial(projection.project_step, name, now=utcnow())))
        page_ids = make_stale(owner, SMALL, pick, outbox=False)
        took[MINIMUM].append(timed(partial(minimal_projection, owner, redis, SMALL, page_ids)))
    return {name: statistics.median(times[WARM_UP:]) * 1000 for name, times in took.items()}


def print_costs(pick: Callable[[int], set[int]], ms: dict[str, float]) -> None:
    small, large, minimum = ms[SMALL], ms[LARGE], ms[MINIMUM]
    print(f"  pages picked {pick.__name__.replace('_', ' ')}")
    print(f"    {dataset.PAGES_OF[SMALL]:>9,} pages: {small:7.1f} ms")
    print(f"    {dataset.PAGES_OF[LARGE]:>9,} pages: {large:7.1f} ms   {large / small:.2f} times as long")
    print(f"    one statement and raw pipelines: {minimum:.1f} ms; {minimum / small:.2f} of that speed")


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
