"""Deletes the rows of deleted tenants, a bounded number in each transaction, so that nobody waits for it.

Tables that refer to others come first, so the database's own cascades find nothing to delete. Whoever deletes has the
tenant's row locked until the end of each transaction; a run that was killed is continued by any other.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from graphlib import TopologicalSorter
from typing import Any

from sqlalchemy import delete, select, text
from sqlalchemy.exc import DBAPIError

from tenants.across import STATEMENT_TIMED_OUT
from tenants.db import Tx, owner_tx
from tenants.registry import Tenant

MAX_ROWS_PER_STEP = 10_000
# Only a progress bar needs the number.
MAX_COUNT_S = 3.0


@dataclass
class Purged:
    """Counts what this run has deleted, and tells whether the tenant is gone with it."""

    rows: int = 0
    # The rows alone: their indexes come on top.
    bytes: int = 0
    is_gone: bool = False


@dataclass(frozen=True)
class _Table:
    """A table with rows of tenants, by its quoted name; its primary key after `tenant_id`, by column and type."""

    name: str
    key: tuple[tuple[str, str], ...]

    @property
    def columns(self) -> str:
        return ", ".join(column for column, _ in self.key)

    def bound(self, name: str) -> str:
        """A key as parameters."""
        return ", ".join(f"CAST(:{name}_{place} AS {type_})" for place, (_, type_) in enumerate(self.key))


# A key after `tenant_id`.
_Key = tuple[Any, ...]


def _never() -> bool:
    return False


def _unwatched(_rows: int, /) -> None: ...


def count(tenant_id: str) -> int | None:
    """How many rows a tenant has. None: too many to be counted soon."""
    rows, ends_at = 0, time.monotonic() + MAX_COUNT_S
    try:
        with owner_tx() as tx:
            for table in _tables(tx):
                left_ms = max(int((ends_at - time.monotonic()) * 1000), 1)
                tx.execute(text(f"SET LOCAL statement_timeout = {left_ms}"))
                counted = text(f"SELECT count(*) FROM {table.name} WHERE tenant_id = :tenant")  # noqa: S608  quoted
                rows += int(tx.scalar(counted, {"tenant": tenant_id}) or 0)
    except DBAPIError as error:
        if getattr(error.orig, "sqlstate", None) == STATEMENT_TIMED_OUT:
            return None
        raise
    return rows


def purge(tenant_id: str, *, is_over: Callable[[], bool] = _never, watch: Callable[[int], None] = _unwatched) -> Purged:
    """Delete the rows of a marked tenant, and at last the tenant, each step in a transaction of its own. As the owner.

    Ends early if `is_over` says so after a step, or if another process already does this. `watch` is told the rows so
    far.
    """
    done = Purged()
    with owner_tx() as tx:
        tables = _tables(tx)
    for table in tables:
        after: _Key | None = None
        is_last = False
        while not is_last:
            with owner_tx() as tx:
                if not _lock(tx, tenant_id):
                    return done
                before = done.rows
                after, is_last = _delete_some(tx, tenant_id, table, after, done)
            if done.rows > before:  # a table that is empty is no step, or a busy worker would get no further
                watch(done.rows)
                if is_over():
                    return done
    with owner_tx() as tx:
        if _lock(tx, tenant_id):
            tx.execute(delete(Tenant).where(Tenant.id == tenant_id))
            for table in tables:  # written meanwhile by who had begun before the tenant was deleted
                tx.execute(text(f"DELETE FROM {table.name} WHERE tenant_id = :tenant"), {"tenant": tenant_id})  # noqa: S608  quoted
            done.is_gone = True
    return done


def _lock(tx: Tx, tenant_id: str) -> bool:
    """Whether the tenant is marked as deleted, and nobody else deletes its rows just now."""
    marked = select(Tenant.id).where(Tenant.id == tenant_id, Tenant.deleted_at.is_not(None))
    return tx.scalar(marked.with_for_update(skip_locked=True)) is not None


def _delete_some(tx: Tx, tenant_id: str, table: _Table, after: _Key | None, done: Purged) -> tuple[_Key | None, bool]:
    """Delete the next rows by primary key; returns the key of the last, and whether it was the table's last."""
    parameters: dict[str, Any] = {"tenant": tenant_id}
    bounds = ""
    if after is not None:  # past the entries of what is deleted already
        bounds += f" AND ({table.columns}) > ({table.bound('after')})"
        parameters |= _named("after", after)
    last: _Key | None = None
    if table.key:
        found = tx.execute(
            text(
                f"SELECT {table.columns} FROM {table.name} WHERE tenant_id = :tenant{bounds}"  # noqa: S608  quoted
                f" ORDER BY {table.columns} LIMIT 1 OFFSET {MAX_ROWS_PER_STEP - 1}"
            ),
            parameters,
        ).one_or_none()
        last = tuple(found) if found is not None else None
    if last is not None:
        bounds += f" AND ({table.columns}) <= ({table.bound('last')})"
        parameters |= _named("last", last)
    sized = "count(*) AS rows, COALESCE(sum(pg_column_size(s.*)), 0) AS bytes"
    size = text(f"SELECT {sized} FROM {table.name} s WHERE tenant_id = :tenant{bounds}")  # noqa: S608  quoted
    counted = tx.execute(size, parameters).one()
    if counted.rows:
        tx.execute(text(f"DELETE FROM {table.name} WHERE tenant_id = :tenant{bounds}"), parameters)  # noqa: S608  quoted
    done.rows += counted.rows
    done.bytes += int(counted.bytes)
    return last, last is None


def _named(name: str, key: _Key) -> dict[str, Any]:
    return {f"{name}_{place}": value for place, value in enumerate(key)}


def _tables(tx: Tx) -> list[_Table]:
    """The tables with rows of tenants, those first that refer to others."""
    keys: dict[str, list[tuple[str, str]]] = {}
    for row in tx.execute(_KEYS):
        key = keys.setdefault(row.name, [])
        if row.column_name not in {None, "tenant_id"}:
            key.append((row.column_name, row.column_type))
    referring: dict[str, set[str]] = {name: set() for name in keys}
    for row in tx.execute(_REFERENCES):
        if row.parent in keys and row.child in keys and row.parent != row.child:
            referring[row.parent].add(row.child)
    return [_Table(name, tuple(keys[name])) for name in TopologicalSorter(referring).static_order()]


# Changes of credentials stay for their own retention: a process that was stopped meanwhile must still read them.
_KEYS = text("""
    SELECT quote_ident(c.relname) AS name, quote_ident(k.attname) AS column_name,
           format_type(k.atttypid, k.atttypmod) AS column_type
    FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'tenant_id'
    LEFT JOIN pg_index i ON i.indrelid = c.oid AND i.indisprimary
    LEFT JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY AS n(number, place) ON true
    LEFT JOIN pg_attribute k ON k.attrelid = c.oid AND k.attnum = n.number
    WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
      AND c.relname <> 'credential_changes' ORDER BY c.relname, n.place
""")
_REFERENCES = text("""
    SELECT DISTINCT quote_ident(p.relname) AS parent, quote_ident(c.relname) AS child
    FROM pg_constraint f JOIN pg_class p ON p.oid = f.confrelid JOIN pg_class c ON c.oid = f.conrelid
    WHERE f.contype = 'f'
""")
