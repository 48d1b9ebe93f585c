"""`plaudit rebuild`: compute every page and user of a tenant again, then fill every board again."""

from collections.abc import Callable
from datetime import datetime

from sqlalchemy import text

from analytics import counters, outbox
from analytics.boards import rebuilding, redis_store, versions
from analytics.boards.names import boards_in
from analytics.boards.projection import MAX_ROWS_PER_STEP, Projected, project_all
from analytics.locks import lock_boards
from analytics.metrics import user_metrics
from analytics.outbox import Kind
from tenants import redis
from tenants.db import array, tenant_tx


def recompute_tenant(tenant_id: str, *, now: Callable[[], datetime], progress: Callable[[int], None]) -> Projected:
    """Page by page, then scope by scope, each step in a transaction of its own."""
    done, after = Projected(), 0
    while True:
        with tenant_tx(tenant_id) as tx:
            page_ids = list(tx.scalars(_PAGES, {"tenant": tenant_id, "after": after, "limit": MAX_ROWS_PER_STEP}))
            counters.recount(tx, page_ids)
            # Without a wake-up: a worker that projects them too would only get in the way.
            every_page = "SELECT unnest(CAST(:pages AS text[]))"
            outbox.mark_selected_stale(tx, Kind.PAGE, every_page, {"pages": array(page_ids)})
        project_all(tenant_id, now=now)
        progress(len(page_ids))
        done.pages += len(page_ids)
        if len(page_ids) < MAX_ROWS_PER_STEP:
            break
        after = page_ids[-1]
    with tenant_tx(tenant_id) as tx:
        outbox.mark_selected_stale(tx, Kind.USER, _USERS, {})
    project_all(tenant_id, now=now)
    with tenant_tx(tenant_id) as tx, redis.boards().client() as client:
        lock_boards(tx, tenant_id)
        every = rebuilding.all_boards(tx)
        redis_store.delete_others(client, tenant_id, every)
    for scope in sorted({board.scope for board in every}):
        with tenant_tx(tenant_id) as tx, redis.boards().client() as client:
            lock_boards(tx, tenant_id)
            boards = boards_in(tenant_id, scope)
            # Redis may have later versions than PostgreSQL, which lost commits: readers must not keep those.
            raised = versions.advance(tx, boards, now=now())
            done.rebuilt += rebuilding.rebuild(tx, client, boards, progress=progress)
            redis_store.publish(client, raised)
    with redis.boards().client() as client:
        redis_store.publish_resync(client, tenant_id)
    return done


_PAGES = text("""
    SELECT id FROM (SELECT id FROM pages WHERE tenant_id = :tenant AND id > :after
                    UNION SELECT page_id FROM page_stats WHERE tenant_id = :tenant AND page_id > :after) every
    ORDER BY id LIMIT :limit
""")

_USERS = " UNION ".join(
    [
        "SELECT user_id::text FROM user_points_hour WHERE tenant_id = :tenant",
        "SELECT user_id::text FROM user_stats WHERE tenant_id = :tenant",
        *(
            f"SELECT id::text FROM users WHERE tenant_id = :tenant AND {source.total} > 0"  # noqa: S608  names from the table of metrics
            for source in user_metrics().values()
        ),
    ]
)
