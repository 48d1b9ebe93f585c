"""Page counters: a page's totals of all time. Whatever adds to a page's counts locks its counter first.

Views do not wait for that lock, since every view of a busy page would, on every node. Those that find it taken wait in
the outbox, committed like any others, until the next projection adds them to the counts.
"""

from collections.abc import Iterable, Sequence

from sqlalchemy import BigInteger, ForeignKeyConstraint, text
from sqlalchemy.orm import Mapped, mapped_column

from analytics.metrics import Counted, counted_metrics
from tenants.db import Base, Query, TenantOwned, Tx, array

# For a counter that somebody has locked. Commits of views and likes take a few milliseconds.
MAX_WAIT_MS = 200


class PageCounter(TenantOwned, Base):
    __tablename__ = "page_counters"
    __table_args__ = (
        ForeignKeyConstraint(["tenant_id", "page_id"], ["pages.tenant_id", "pages.id"], ondelete="CASCADE"),
    )

    page_id: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)


# For each counted metric its total, and where its rows are purged, how much of the total was in purged rows.
for _source in counted_metrics().values():
    for _name in (_source.total, _source.purged):
        if _name is not None:
            setattr(PageCounter, _name, mapped_column(BigInteger, nullable=False, server_default="0"))


def lock(tx: Tx, page_ids: Iterable[int]) -> None:
    """Lock these pages' counters by page id, so that no two transactions deadlock."""
    tx.execute(
        text("""
            SELECT FROM page_counters
            WHERE tenant_id = :tenant AND page_id = ANY(CAST(:pages AS bigint[]))
            ORDER BY page_id FOR UPDATE
        """),
        {"tenant": tx.tenant, "pages": array(sorted(page_ids))},
    )


def finding_waiting_views(tenant_id: str) -> Query:
    """The query that finds a row if there are views that wait."""
    return _FIND_WAITING, {"tenant": tenant_id}


def count_waiting_views(tx: Tx, *, limit: int) -> int:
    """Add views that wait to the counts of their pages, a bounded number of rows. Returns how many these were.

    Under the tenant's board lock, and in a transaction that ends at once: likes of these pages wait for it. It gives up
    soon where somebody keeps a counter locked (`locks.is_timeout`).
    """
    *_, ((counted,),) = tx.run_in_one_trip(_WAIT_BRIEFLY, (_COUNT_WAITING, {"tenant": tx.tenant, "limit": limit}))
    return int(counted)


def recount(tx: Tx, page_ids: Sequence[int]) -> None:
    """Set these pages' counters to the sums of their rows."""
    lock(tx, page_ids)
    tx.execute(_RECOUNT, {"tenant": tx.tenant, "pages": array(page_ids)})


_FIND_WAITING = text("SELECT id FROM outbox WHERE tenant_id = :tenant AND kind = 'views' LIMIT 1")
_WAIT_BRIEFLY: Query = (text(f"SET LOCAL lock_timeout = {MAX_WAIT_MS}"), {})
_COUNT_WAITING = text("SELECT count_waiting_views(:tenant, CAST(:limit AS int)) AS counted")


def _recounted(source: Counted) -> str:
    kept = f"""(SELECT COALESCE({source.aggregate}, 0) FROM {source.table}
                WHERE tenant_id = :tenant AND page_id = c.page_id)"""  # noqa: S608  names from the table of metrics
    return f"{source.total} = {f'c.{source.purged} + ' if source.purged else ''}{kept}"


_RECOUNT = text(f"""
    UPDATE page_counters c SET {", ".join(_recounted(source) for source in counted_metrics().values())}
    WHERE c.tenant_id = :tenant AND c.page_id = ANY(CAST(:pages AS bigint[]))
""")  # noqa: S608  names from the table of metrics
