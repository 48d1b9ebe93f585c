"""The versions of boards: raised with every change, kept in PostgreSQL, so that they never go back."""

from collections.abc import Collection
from datetime import datetime

from sqlalchemy import BigInteger, ForeignKey, text
from sqlalchemy.orm import Mapped, mapped_column

from analytics.boards import ALL_TENANTS, GLOBAL, Board, Version
from tenants.db import Base, TenantOwned, Tx


class BoardRow(TenantOwned, Base):
    """A board's version. It never goes back."""

    __tablename__ = "boards"

    tenant_id: Mapped[str] = mapped_column(
        ForeignKey("tenants.id", ondelete="CASCADE"), primary_key=True, sort_order=-1
    )
    scope: Mapped[str] = mapped_column(primary_key=True)
    time_window: Mapped[str] = mapped_column(primary_key=True)
    metric: Mapped[str] = mapped_column(primary_key=True)
    version: Mapped[int] = mapped_column(BigInteger)
    changed_at: Mapped[datetime]


class GlobalBoardRow(Base):
    """A global board's version."""

    __tablename__ = "global_boards"

    time_window: Mapped[str] = mapped_column(primary_key=True)
    metric: Mapped[str] = mapped_column(primary_key=True)
    version: Mapped[int] = mapped_column(BigInteger, server_default="0")
    changed_at: Mapped[datetime] = mapped_column(server_default=text("now()"))


def raise_all(tx: Tx, changed: Collection[Board], *, now: datetime) -> dict[Board, Version]:
    """New versions for these boards."""
    versions: dict[Board, Version] = {}
    own = sorted((b for b in changed if b.tenant_id != ALL_TENANTS), key=lambda board: board.topic)
    if own:
        rows = tx.run(
            _RAISE,
            {
                "tenant": own[0].tenant_id,
                "scopes": [board.scope for board in own],
                "windows": [board.window.value for board in own],
                "metrics": [board.metric.value for board in own],
                "now": now,
            },
        )
        numbers = {(row.scope, row.time_window, row.metric): row.version for row in rows}
        versions |= {b: Version(numbers[b.scope, b.window.value, b.metric.value], now) for b in own}
    for board in sorted((b for b in changed if b.tenant_id == ALL_TENANTS), key=lambda board: board.topic):
        number = tx.run(_RAISE_GLOBAL, {"window": board.window.value, "metric": board.metric.value, "now": now})
        versions[board] = Version(number.scalar_one(), now)
    return versions


def read(tx: Tx, wanted: Collection[Board], *, now: datetime) -> dict[Board, Version]:
    """The versions of these boards; those that never changed are at 0."""
    known: dict[tuple[str, str, str], Version] = {}
    if tx.tenant_id is not None:
        rows = tx.execute(
            text("SELECT scope, time_window, metric, version, changed_at FROM boards WHERE tenant_id = :tenant"),
            {"tenant": tx.tenant},
        )
        known = {(row.scope, row.time_window, row.metric): Version(row.version, row.changed_at) for row in rows}
    if any(board.tenant_id == ALL_TENANTS for board in wanted):
        for row in tx.execute(text("SELECT time_window, metric, version, changed_at FROM global_boards")):
            known[GLOBAL, row.time_window, row.metric] = Version(row.version, row.changed_at)
    return {b: known.get((b.scope, b.window.value, b.metric.value), Version(0, now)) for b in wanted}


_RAISE = text("""
    INSERT INTO boards AS b (tenant_id, scope, time_window, metric, version, changed_at)
    SELECT :tenant, scope, time_window, metric, 1, :now
    FROM unnest(CAST(:scopes AS text[]), CAST(:windows AS text[]), CAST(:metrics AS text[]))
         AS w(scope, time_window, metric)
    ON CONFLICT (tenant_id, scope, time_window, metric)
    DO UPDATE SET version = b.version + 1, changed_at = EXCLUDED.changed_at
    RETURNING scope, time_window, metric, version
""")

_RAISE_GLOBAL = text("""
    UPDATE global_boards SET version = version + 1, changed_at = :now
    WHERE time_window = :window AND metric = :metric RETURNING version
""")
