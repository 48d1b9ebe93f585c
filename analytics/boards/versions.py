"""The versions of boards: raised with every change and kept in PostgreSQL, so that they never go back.

A version is *reserved* (and committed) before anything is written to Redis, so that none is ever published twice; it is
*confirmed* as the board's `version` in the transaction of the numbers that it belongs to.
"""

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, text
from sqlalchemy.orm import Mapped, mapped_column

from analytics.boards.names import GLOBAL, Board, Version
from tenants.db import Base, DeletedWithTenant, Query, Tx, array
from tenants.group_tx import commit_in_one_trip

Reserved = dict[Board, Version]


class BoardRow(DeletedWithTenant, Base):
    __tablename__ = "boards"

    scope: Mapped[str] = mapped_column(primary_key=True)
    time_window: Mapped[str] = mapped_column(primary_key=True)
    metric: Mapped[str] = mapped_column(primary_key=True)
    version: Mapped[int] = mapped_column(BigInteger, server_default="0")
    reserved: Mapped[int] = mapped_column(BigInteger)
    changed_at: Mapped[datetime]


class GlobalBoardRow(Base):
    __tablename__ = "global_boards"

    time_window: Mapped[str] = mapped_column(primary_key=True)
    metric: Mapped[str] = mapped_column(primary_key=True)
    version: Mapped[int] = mapped_column(BigInteger, server_default="0")
    reserved: Mapped[int] = mapped_column(BigInteger, server_default="0")
    changed_at: Mapped[datetime] = mapped_column(server_default=text("now()"))


def reserve(tenant_id: str, changing: Collection[Board], *, now: datetime, first: Query | None = None) -> Reserved:
    """Reserve the next version of each of these boards, in a transaction of its own: committed in one round trip.

    `first`: a statement that is committed with it.
    """
    own, global_ones = _by_owner(changing)
    queries: list[Query] = [first] if first is not None else []
    if own:
        queries.append((_RESERVE, {"tenant": tenant_id, **_columns(own), "now": now}))
    if global_ones:
        queries.append((_RESERVE_GLOBAL, {**_columns(global_ones), "now": now}))
    if not queries:
        return {}
    answers = commit_in_one_trip(tenant_id, queries)
    rows = [row for answer in answers[first is not None :] for row in answer]
    numbers = {(row.scope, row.time_window, row.metric): row.reserved for row in rows}
    return {board: Version(numbers[_name(board)], now) for board in changing}


def confirm(tx: Tx, reserved: Mapping[Board, Version]) -> None:
    """Make these the versions of the numbers in this transaction."""
    own, global_ones = _by_owner(reserved)
    for boards, statement in ((own, _CONFIRM), (global_ones, _CONFIRM_GLOBAL)):
        if boards:
            changed_at = reserved[boards[0]].changed_at
            numbers = array(reserved[board].number for board in boards)
            owner = {"tenant": tx.tenant} if statement is _CONFIRM else {}
            tx.run(statement, {**owner, **_columns(boards), "numbers": numbers, "now": changed_at})


def jump(tx: Tx, *, now: datetime) -> None:
    """After a restore, as the owner: raise all versions above any that was published since the backup."""
    for table in ("boards", "global_boards"):
        tx.execute(
            text(f"UPDATE {table} SET reserved = GREATEST(reserved, :number), version = GREATEST(version, :number)"),  # noqa: S608
            {"number": int(now.timestamp() * 1000)},
        )


def read(tx: Tx, wanted: Collection[Board], *, now: datetime) -> dict[Board, Version]:
    """The versions of these boards as of this transaction; 0 where a board never changed."""
    own, global_ones = _by_owner(wanted)
    rows: list[Any] = []
    if own:
        scopes = sorted({board.scope for board in own})
        rows += tx.run(_READ, {"tenant": tx.tenant, "scopes": scopes})
    if global_ones:
        rows += tx.run(_READ_GLOBAL, {})
    known = {(row.scope, row.time_window, row.metric): Version(row.version, row.changed_at) for row in rows}
    return {board: known.get(_name(board), Version(0, now)) for board in wanted}


def _by_owner(boards: Collection[Board]) -> tuple[list[Board], list[Board]]:
    """A tenant's own boards and the global ones, each in the order in which rows are locked."""
    ordered = sorted(boards, key=_name)
    return [board for board in ordered if not board.is_global], [board for board in ordered if board.is_global]


def _name(board: Board) -> tuple[str, str, str]:
    return board.scope, board.window.value, board.metric.name


def _columns(boards: Collection[Board]) -> dict[str, list[str]]:
    scopes, windows, metrics = zip(*map(_name, boards), strict=True)
    return {"scopes": list(scopes), "windows": list(windows), "metrics": list(metrics)}


_NAMED = """unnest(CAST(:scopes AS text[]), CAST(:windows AS text[]), CAST(:metrics AS text[]))
         AS w(scope, time_window, metric)"""
_NUMBERED = """unnest(CAST(:scopes AS text[]), CAST(:windows AS text[]), CAST(:metrics AS text[]),
                CAST(:numbers AS bigint[])) AS w(scope, time_window, metric, number)"""

_RESERVE = text(f"""
    INSERT INTO boards AS b (tenant_id, scope, time_window, metric, reserved, changed_at)
    SELECT :tenant, scope, time_window, metric, 1, :now FROM {_NAMED}
    ON CONFLICT (tenant_id, scope, time_window, metric) DO UPDATE SET reserved = b.reserved + 1
    RETURNING scope, time_window, metric, reserved
""")  # noqa: S608  constants

_RESERVE_GLOBAL = text(f"""
    UPDATE global_boards b SET reserved = reserved + 1 FROM {_NAMED}
    WHERE b.time_window = w.time_window AND b.metric = w.metric
    RETURNING '{GLOBAL}' AS scope, b.time_window, b.metric, b.reserved
""")  # noqa: S608  constants

_CONFIRM = text(f"""
    UPDATE boards b SET version = w.number, changed_at = :now FROM {_NUMBERED}
    WHERE b.tenant_id = :tenant AND b.scope = w.scope AND b.time_window = w.time_window AND b.metric = w.metric
""")  # noqa: S608  constants

_CONFIRM_GLOBAL = text(f"""
    UPDATE global_boards b SET version = w.number, changed_at = :now FROM {_NUMBERED}
    WHERE b.time_window = w.time_window AND b.metric = w.metric
""")  # noqa: S608  constants

_READ = text("""
    SELECT scope, time_window, metric, version, changed_at FROM boards
    WHERE tenant_id = :tenant AND scope = ANY(CAST(:scopes AS text[]))
""")

_READ_GLOBAL = text(f"SELECT '{GLOBAL}' AS scope, time_window, metric, version, changed_at FROM global_boards")  # noqa: S608
