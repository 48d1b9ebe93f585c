"""Page counters: a page's totals of all time. Whatever adds to a page's counts locks its counter first.

Views do not wait for that lock, since every view of a busy page would, on every node. Those that find it taken are
committed like any others, and wait in the outbox until the next projection adds them to the counts.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sqlalchemy import BigInteger, ForeignKeyConstraint, text
from sqlalchemy.orm import Mapped, mapped_column

from analytics import metrics
from tenants.db import Base, Query, TenantOwned, Tx, array

# For a counter that somebody has locked. Most commits take a few milliseconds, but one may wait for another tenant.
MAX_WAIT_MS = 500


class PageCounter(TenantOwned, Base):
    __tablename__ = "page_counters"
    __table_args__ = (
        ForeignKeyConstraint(["tenant_id", "page_id"], ["pages.tenant_id", "pages.id"], ondelete="CASCADE"),
    )

    page_id: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)


# For each counted metric its total, and where its rows are purged, how much of the total was in purged rows.
for _source in metrics.counted_metrics().values():
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


@dataclass(frozen=True)
class Counted:
    """What became of waiting views."""

    rows: int
    # The pages whose counters others have locked: their views still wait.
    locked_pages: Sequence[int]


def finding_waiting_views(tenant_id: str) -> Query:
    """The query that finds a row if there are views that wait."""
    return _FIND_WAITING, {"tenant": tenant_id}


def count_waiting_views(tx: Tx, *, limit: int) -> Counted:
    """Add views that wait to the counts of their pages, a bounded number of rows, without waiting for any counter.

    Under the tenant's board lock, and in a transaction that ends at once: likes of these pages wait for it.
    """
    return _count_waiting(tx, None, limit=limit)


def count_waiting_views_of(tx: Tx, page_id: int, *, limit: int) -> Counted:
    """The same for one page, waiting for its counter, but not for long (`locks.is_timeout`)."""
    tx.run_in_one_trip(*_WAIT_BRIEFLY)
    return _count_waiting(tx, page_id, limit=limit)


def _count_waiting(tx: Tx, page_id: int | None, *, limit: int) -> Counted:
    (found,) = tx.run(_COUNT_WAITING, {"tenant": tx.tenant, "page": page_id, "limit": limit})
    return Counted(found.counted_rows, found.locked_pages or ())


def recount(tx: Tx, page_ids: Sequence[int]) -> None:
    """Set these pages' counters to the sums of their rows."""
    lock(tx, page_ids)
    tx.execute(_RECOUNT, {"tenant": tx.tenant, "pages": array(page_ids)})


_FIND_WAITING = text("SELECT id FROM outbox WHERE tenant_id = :tenant AND kind = 'views' LIMIT 1")
_WAIT_BRIEFLY: Sequence[Query] = [
    (text(f"SET LOCAL {name} = {MAX_WAIT_MS}"), {}) for name in ("lock_timeout", "statement_timeout")
]
_COUNT_WAITING = text("SELECT * FROM count_waiting_views(:tenant, CAST(:page AS bigint), CAST(:limit AS int))")


def _recounted(source: metrics.Counted) -> str:
    kept = f"""(SELECT COALESCE({source.aggregate}, 0) FROM {source.table}
                WHERE tenant_id = :tenant AND page_id = c.page_id)"""  # noqa: S608  names from the table of metrics
    return f"{source.total} = {f'c.{source.purged} + ' if source.purged else ''}{kept}"


_RECOUNT = text(f"""
    UPDATE page_counters c SET {", ".join(_recounted(source) for source in metrics.counted_metrics().values())}
    WHERE c.tenant_id = :tenant AND c.page_id = ANY(CAST(:pages AS bigint[]))
""")  # noqa: S608  names from the table of metrics
