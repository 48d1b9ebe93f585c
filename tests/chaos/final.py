"""What the site has at the end: rows of PostgreSQL, and every board as both nodes show it. Plain JSON."""

import http.client
from datetime import UTC, datetime
from itertools import product
from typing import Any

from psycopg.rows import dict_row

from tests.chaos.callers import plain_call
from tests.chaos.site import NODES, Site
from tests.chaos.world import RED, SPACES, TENANT, World

WINDOWS = ("1d", "7d", "30d", "all")
PAGE_METRICS = ("views", "visitors", "likes", "score")
USER_METRICS = ("points", "xp", "reputation")
PAGE_SCOPES = ("tenant", "public", *(f"space:{space}" for space in SPACES))
USER_SCOPES = ("users", f"users:{RED}")
BOARDS = [
    *(f"{scope}:{window}:{metric}" for scope, window, metric in product(PAGE_SCOPES, WINDOWS, PAGE_METRICS)),
    *(f"{scope}:{window}:{metric}" for scope, window, metric in product(USER_SCOPES, WINDOWS, USER_METRICS)),
]
MAX_ROWS = 1000

_ROWS = {
    # Views that wait to be counted are in no hour of their page yet.
    "views": """
        SELECT p.external_id AS page, h.bucket_hour AS hour, sum(h.views) AS views, sum(h.visitors) AS visitors
        FROM (
            SELECT tenant_id, page_id, bucket_hour, views, visitors FROM page_views_hour
            UNION ALL
            SELECT tenant_id, member::bigint, hour, views, coalesce(visitors, 0) FROM outbox WHERE kind = 'views'
        ) h JOIN pages p ON p.tenant_id = h.tenant_id AND p.id = h.page_id
        WHERE h.tenant_id = %(tenant)s GROUP BY 1, 2""",
    "likes": """
        SELECT p.external_id AS page, coalesce(u.external_id, u.username, u.id::text) AS "user", u.id::text AS user_id,
            l.liked_at AS at
        FROM page_likes l JOIN pages p ON p.tenant_id = l.tenant_id AND p.id = l.page_id
        JOIN users u ON u.tenant_id = l.tenant_id AND u.id = l.user_id
        WHERE l.tenant_id = %(tenant)s AND l.liked_at IS NOT NULL""",
    "ledger": """
        SELECT l.id, u.id::text AS user_id, coalesce(u.external_id, u.username, u.id::text) AS "user", l.account,
            l.source, l.delta, l.previous, l.score, l.at, l.action_type, coalesce(a.object, l.reason) AS object
        FROM score_ledger l JOIN users u ON u.tenant_id = l.tenant_id AND u.id = l.user_id
        LEFT JOIN action_events a
            ON a.tenant_id = l.tenant_id AND a.user_id = l.user_id AND a.source = l.source AND l.account = 'points'
        WHERE l.tenant_id = %(tenant)s ORDER BY l.id""",
    "users": """
        SELECT id::text, coalesce(external_id, username, id::text) AS name, erased_at IS NOT NULL AS erased,
            suspended_at IS NOT NULL AS suspended, display_name, segments || coalesce(ARRAY[segment], '{}') AS segments,
            current_score AS points, experience_points AS xp, reputation
        FROM users WHERE tenant_id = %(tenant)s""",
    "pages": """
        SELECT id, external_id AS page, title, space_key AS space, visibility
        FROM pages WHERE tenant_id = %(tenant)s""",
    "quests": """
        SELECT id::text, status, version, performer_id::text AS performer, reward_xp AS xp,
            reward_reputation AS reputation
        FROM quests WHERE tenant_id = %(tenant)s""",
}


def rows(site: Site) -> dict[str, Any]:
    """The tenant's rows, in one snapshot."""
    with site.superuser() as connection, connection.transaction(), connection.cursor(row_factory=dict_row) as cursor:
        cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        found: dict[str, Any] = {}
        for name, statement in _ROWS.items():
            cursor.execute(statement, {"tenant": TENANT})
            found[name] = [_plain(row) for row in cursor.fetchall()]
        return found


def boards(world: World, node: str) -> dict[str, Any]:
    """Every board as this node shows it."""
    connection = http.client.HTTPConnection("127.0.0.1", world.ports[node], timeout=20)
    headers = {"Authorization": f"Bearer {world.client.get()}"}
    found: dict[str, Any] = {}
    try:
        for topic in BOARDS:
            scope, window, metric = topic.rsplit(":", 2)
            path = f"/api/v1/leaderboards?scope={scope}&window={window}&metric={metric}&limit={MAX_ROWS}"
            status, body, _ = plain_call(connection, "GET", path, None, headers)
            if status != 200:
                found[topic] = {"status": status}
                continue
            items = [[_name(item), item["value"]] for item in body["items"]]
            found[topic] = {name: body[name] for name in ("version", "total", "source", "as_of")} | {"rows": items}
    finally:
        connection.close()
    return found


def collect(site: Site, world: World) -> dict[str, Any]:
    shown = {node: boards(world, node) for node in NODES}
    return {"at": datetime.now(UTC).isoformat(), **rows(site), "boards": shown}


def _name(item: dict[str, Any]) -> str:
    if page := item.get("page"):
        return str(page["external_id"])
    user = item["user"]
    return str(user.get("external_id") or user.get("username") or user["id"])


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, datetime):
            plain[name] = value.astimezone(UTC).isoformat()
        elif hasattr(value, "as_tuple"):  # numeric, of a sum
            plain[name] = int(value)
        else:
            plain[name] = value
    return plain
