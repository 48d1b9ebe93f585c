"""The list of a tenant's spaces, with the counts of their pages."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Row, text

from analytics.metrics import column, counted_metrics
from analytics.windows import Window
from tenants.db import Tx

WINDOW = Window.WEEK
# The columns of the list that have counts: `views_7d` and so on.
COUNTS = {column(metric, WINDOW): metric for metric in counted_metrics()}


def list_(tx: Tx, *, after: str | None, limit: int, public_only: bool) -> Sequence[Row[Any]]:
    """The tenant's spaces by their keys: how many pages each has, and their counts in the window.

    With `public_only` only public pages are counted, and only spaces that have some are listed.
    """
    return tx.execute(_LIST, {"tenant": tx.tenant, "after": after, "limit": limit, "public_only": public_only}).all()


_LIST = text(f"""
    SELECT p.space_key AS space, count(*) AS pages, count(*) FILTER (WHERE p.visibility = 'public') AS public_pages,
           {", ".join(f"COALESCE(sum(s.{name}), 0)::bigint AS {name}" for name in COUNTS)}
    FROM pages p LEFT JOIN page_stats s ON s.tenant_id = p.tenant_id AND s.page_id = p.id
    WHERE p.tenant_id = :tenant AND (CAST(:after AS text) IS NULL OR p.space_key > :after)
      AND (NOT :public_only OR p.visibility = 'public')
    GROUP BY p.space_key ORDER BY p.space_key LIMIT :limit
""")  # noqa: S608  names from the table of metrics
