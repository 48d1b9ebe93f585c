"""Page counters: a page's totals of all time, always exact. Whatever writes to a page locks its counter first."""

from collections.abc import Iterable, Sequence

from sqlalchemy import BigInteger, ForeignKeyConstraint, text
from sqlalchemy.orm import Mapped, mapped_column

from analytics.metrics import Counted, counted_metrics
from tenants.db import Base, TenantOwned, Tx, array


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


def recount(tx: Tx, page_ids: Sequence[int]) -> None:
    """Set these pages' counters to the sums of their rows."""
    lock(tx, page_ids)
    tx.execute(_RECOUNT, {"tenant": tx.tenant, "pages": array(page_ids)})


def _recounted(source: Counted) -> str:
    kept = f"""(SELECT COALESCE({source.aggregate}, 0) FROM {source.table}
                WHERE tenant_id = :tenant AND page_id = c.page_id)"""  # noqa: S608  names from the table of metrics
    return f"{source.total} = {f'c.{source.purged} + ' if source.purged else ''}{kept}"


_RECOUNT = text(f"""
    UPDATE page_counters c SET {", ".join(_recounted(source) for source in counted_metrics().values())}
    WHERE c.tenant_id = :tenant AND c.page_id = ANY(CAST(:pages AS bigint[]))
""")  # noqa: S608  names from the table of metrics
