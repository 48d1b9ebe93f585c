"""The plans of the statements that a function executes, as PostgreSQL carries them out."""

import re
from collections.abc import Callable
from typing import Any

from sqlalchemy import event

from tenants.db import Tx


def plans_of(tx: Tx, call: Callable[[], Any]) -> list[str]:
    """For each statement of the call its plan, with the rows that it really read."""
    connection = tx.connection()
    executed: list[tuple[str, Any]] = []

    def note(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        executed.append((statement, parameters))

    event.listen(connection, "before_cursor_execute", note)
    try:
        call()
    finally:
        event.remove(connection, "before_cursor_execute", note)
    assert executed
    explain = "EXPLAIN (ANALYZE, TIMING OFF, SUMMARY OFF) "
    return [
        "\n".join(row[0] for row in connection.exec_driver_sql(explain + statement, parameters))
        for statement, parameters in executed
    ]


def assert_read_in_order(plan: str, *, most: int) -> None:
    """No table is read as a whole, nothing is sorted, and little more is read than is shown."""
    assert "Seq Scan" not in plan, plan
    assert "Sort" not in plan, plan
    assert_reads_few(plan, most=most)


def assert_reads_few(plan: str, *, most: int) -> None:
    """No scan finds more rows than this, nor throws more away. (An empty partition may be read as a whole.)"""
    assert "Index" in plan, plan
    for rows in re.findall(r"Scan.*actual rows=(\d+)|Rows Removed by Filter: (\d+)", plan):
        assert int("".join(rows)) <= most, plan
