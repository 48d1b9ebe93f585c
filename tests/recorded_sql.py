"""Watches the SQL that tests have our code execute, and checks it by the rules of tests/rules/test_sql.py.

Every statement in a transaction of a tenant: those of the ORM, to which the session adds the tenant, and those that are
put together when they are executed.
"""

import sys
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any
from weakref import WeakSet

from sqlalchemy import Connection, Engine, event

from migrations.run import load_models
from tenants.db import Base, Tx
from tests.sql_statements import broken_rules

ROOT = Path(__file__).parents[1]
OURS = tuple(str(ROOT / package) + "/" for package in ("tenants", "analytics", "app", "workers"))
TESTS = str(ROOT / "tests") + "/"

# What was found since it was last taken: what is broken, and the statement.
found: list[tuple[list[str], str]] = []
_of_a_tenant: WeakSet[Connection] = WeakSet()


@cache
def tenant_tables() -> set[str]:
    load_models()
    return {name for name, table in Base.metadata.tables.items() if "tenant_id" in table.columns}


def watch() -> None:
    """From now on, in this process."""
    opened = Tx.__init__

    def remember(self: Tx, connection: Connection, tenant_id: str | None, **options: Any) -> None:
        opened(self, connection, tenant_id, **options)
        if tenant_id is not None:
            _of_a_tenant.add(connection)

    Tx.__init__ = remember  # type: ignore[method-assign]
    event.listen(Engine, "before_cursor_execute", _check)


def take() -> list[tuple[list[str], str]]:
    taken = found[:]
    found.clear()
    return taken


def _check(connection: Connection, cursor: object, sql: str, *_: object) -> None:
    if connection in _of_a_tenant and (said := _broken(sql)) and _is_ours(sys._getframe(1)):
        found.append((said, sql))


@cache
def _broken(sql: str) -> list[str]:
    return broken_rules(sql, tenant_tables())


def _is_ours(frame: FrameType | None) -> bool:
    """Whether our code executes it, and not a test itself."""
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(TESTS) and file != __file__:
            return False
        if file.startswith(OURS):
            return True
        frame = frame.f_back
    return False
