"""Rules of SQL that let the tables be distributed by tenant (Citus), held without one.

Each is a function that lists what breaks it, tried on broken examples too. docs/architecture.md (SQL) says why.
"""

import ast
import contextlib
import importlib
import pkgutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from sqlalchemy import TextClause, text

from tenants.db import Tx, owner_tx
from tests.recorded_sql import tenant_tables
from tests.sql_statements import (
    broken_rules,
    broken_rules_of_one,
    references,
    starts_with_verb,
    statements_of,
    unbound,
)

ROOT = Path(__file__).parents[2]
PACKAGES = ("tenants", "analytics", "app", "workers")
# Stands for what an f-string inserts inside a function. Where it is a table, it may be any.
INSERTED = "inserted"

# Statements that go over all tenants on purpose, by the module and the constant or function that has them.
ACROSS_TENANTS = {
    "tenants.credential_feed._READ": "every process learns of every tenant's changes",
    "tenants.retention._owners": "finds the tenants that have expired rows",
    "tenants.suspensions._TENANTS_WITH_DUE": "finds the tenants with suspensions past their end",
    "analytics.redaction._PENDING": "finds the tenants with erased users in their audit or kept answers",
    "analytics.outbox._age": "a part of the next one, and of one tenant's lag",
    "analytics.outbox.LAG": "how far the boards of all tenants are behind",
    "analytics.boards.projection._BEHIND": "finds the tenants whose boards are behind",
    "analytics.quests.expiring._TENANTS_WITH_DUE": "finds the tenants with quests past their time",
    "analytics.quests.rewards._TENANTS_WITH_DUE": "finds the tenants that owe rewards",
    "analytics.boards.timeline.forget": "after a restore, for all boards",
    "analytics.boards.timeline._ELSEWHERE": "finds the tenants whose boards were written on another server",
    "app.doctor.boards.slid_windows": "the doctor looks at all tenants",
    "app.doctor.boards.in_redis": "the doctor looks at all tenants",
    "app.doctor.boards.snapshots": "the doctor looks at all tenants",
    "app.doctor.boards._oldest": "the doctor looks at all tenants",
    "app.doctor.boards._stale_members": "the doctor looks at all tenants",
    "app.doctor.boards._intents": "the doctor looks at all tenants",
}
# Parts of statements whose tenant comes from another part: whoever executes them is checked (tests/recorded_sql.py).
PARTS = {
    "tenants.retention._purge",
    "analytics.boards.board_sql.may_show",
    "analytics.boards.overviews._projected",
    "analytics.boards.overviews._of_pages",
    "analytics.boards.postgres_reads.read_top",
    "analytics.boards.postgres_reads.read_subjects",
    "analytics.boards.postgres_reads._ranks_of",
    "analytics.boards.postgres_reads.read_around",
    "analytics.boards.postgres_reads.ranks_for",
    "analytics.boards.postgres_reads._total",
    "analytics.boards.postgres_reads.count_leaving",
    "analytics.boards.preview.of_board",
    "analytics.boards.rebuilding._PAGES",
    "analytics.boards.rebuilding._USERS",
    "analytics.boards.redis_checking._saved",
    "analytics.boards.summaries._from_postgres",
}
# Not sent to a server by us.
SCRIPTS = {
    "app.run.backups.read": "a script for psql",
    "app.run.revocations.copying": "a part of that",
    "app.run.revocations.applying": "a part of that",
    "app.run.revocations._APPLY": "a part of that",
    "app.doctor.schema._repair": "the doctor's advice",
}


def constants(module: ModuleType) -> Iterator[tuple[str, str]]:
    """The strings in a module's constants, by name; whatever they were put together from."""
    imported = {
        alias.asname or alias.name
        for node in ast.parse(Path(str(module.__file__)).read_text()).body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    for name, value in vars(module).items():
        if name not in imported and not name.startswith("__"):
            yield from ((name, one) for one in strings_in(value))


def strings_in(value: Any) -> Iterator[str]:
    match value:
        case TextClause():
            yield value.text
        case str():
            yield value
        case bytes():
            yield value.decode(errors="replace")
        case dict():
            yield from strings_in(list(value.values()))
        case list() | tuple():
            for one in value:
                yield from strings_in(one)


def strings_in_functions(source: str) -> Iterator[tuple[str, str]]:
    """The strings inside a module's functions, by the function's name."""
    for function in ast.walk(ast.parse(source)):
        if isinstance(function, ast.FunctionDef):
            skipped = {node.value for node in ast.walk(function) if isinstance(node, ast.Expr)}  # docstrings
            for node in ast.walk(function):
                if isinstance(node, ast.JoinedStr):
                    skipped |= {one for one in ast.walk(node) if isinstance(one, ast.expr) and one is not node}
                    parts = [str(one.value) if isinstance(one, ast.Constant) else INSERTED for one in node.values]
                    yield function.name, "".join(parts)
                elif isinstance(node, ast.Constant) and node not in skipped:
                    value = node.value.decode(errors="replace") if isinstance(node.value, bytes) else node.value
                    if isinstance(value, str):
                        yield function.name, value


def broken(name: str, sql: str, tables: set[str]) -> list[str]:
    """What a string of the code breaks, if it is SQL or a part of it."""
    statements = statements_of(sql)
    if not statements or name in SCRIPTS:
        return []
    if not starts_with_verb(statements[0]) and not any(True for one in statements for _ in references(one, tables)):
        return []
    said = broken_rules(sql, {*tables, INSERTED})
    if name in ACROSS_TENANTS or name in PARTS:
        said = [one for one in said if not one.endswith("no tenant_id")]
    return [f"{name}: {one}" for one in said]


def modules() -> Iterator[ModuleType]:
    for package in PACKAGES:
        for info in pkgutil.walk_packages(importlib.import_module(package).__path__, prefix=f"{package}."):
            if not info.ispkg and not info.name.endswith((".__main__", ".gunicorn_config")):
                yield importlib.import_module(info.name)


@cache
def strings_of_the_code() -> list[tuple[str, str]]:
    """With the module and the constant or function that has each."""
    return [
        (f"{module.__name__}.{name}", sql)
        for module in modules()
        for name, sql in (*constants(module), *strings_in_functions(Path(str(module.__file__)).read_text()))
    ]


def broken_in_functions(tx: Tx, tables: set[str]) -> list[str]:
    """What the bodies of the database's own functions break."""
    rows = tx.execute(
        text("SELECT proname AS name, prosrc AS body FROM pg_proc WHERE pronamespace = 'public'::regnamespace")
    ).all()
    assert rows, "there are functions"
    return [
        f"{row.name}: {said}"
        for row in rows
        for statement in statements_of(row.body)
        for said in broken_rules_of_one(statement, tables)
    ]


def test_statements_are_of_one_tenant_and_can_be_run_where_its_rows_are() -> None:
    tables, strings = tenant_tables(), strings_of_the_code()
    assert [said for name, sql in strings for said in broken(name, sql, tables)] == []
    naming = [name for name, sql in strings for one in statements_of(sql) for _ in references(one, tables)]
    assert len(naming) > 100, "statements are found"


def test_every_exception_is_one() -> None:
    tables = {*tenant_tables(), INSERTED}
    unbound_ones = {
        name for name, sql in strings_of_the_code() for statement in statements_of(sql) if unbound(statement, tables)
    }
    assert {*ACROSS_TENANTS} | PARTS == unbound_ones
    assert {*SCRIPTS} <= {name for name, sql in strings_of_the_code() if len(statements_of(sql)) > 1}


def test_functions_keep_the_same_rules(connected: None) -> None:
    with owner_tx() as tx:
        assert broken_in_functions(tx, tenant_tables()) == []


def test_the_rule_notices_a_function_that_breaks_it(connected: None) -> None:
    body = "BEGIN DELETE FROM pages WHERE tenant_id = _tenant; DELETE FROM page_stats; END"
    with contextlib.suppress(ZeroDivisionError), owner_tx() as tx:
        tx.execute(text(f"CREATE FUNCTION bad(_tenant text) RETURNS void LANGUAGE plpgsql AS $${body}$$"))
        assert broken_in_functions(tx, tenant_tables()) == ["bad: page_stats: no tenant_id"]
        raise ZeroDivisionError


GOOD = [
    "SELECT 1 FROM pages WHERE tenant_id = :tenant",
    "SELECT 1 FROM pages AS p, page_stats s WHERE p.tenant_id = %s AND p.tenant_id = s.tenant_id",
    "SELECT 1 FROM pages p JOIN tenants t ON t.id = p.tenant_id WHERE t.id = :tenant",
    "SELECT 1 FROM pages p WHERE p.tenant_id = $1 AND EXISTS (SELECT FROM users u WHERE u.tenant_id = p.tenant_id)",
    "UPDATE users u SET role = 'x' FROM pages p WHERE u.tenant_id = %(t)s AND p.tenant_id = u.tenant_id",
    "INSERT INTO pages AS p (tenant_id, id) VALUES (:tenant, 1) ON CONFLICT (tenant_id, id) DO UPDATE SET id = p.id",
    "INSERT INTO users (tenant_id, id) SELECT t.id, w.id FROM tenants t CROSS JOIN unnest(:ids) w(id) WHERE t.id = :t",
    "INSERT INTO pages (tenant_id, id) SELECT :tenant, w.id FROM unnest(:ids) w(id) RETURNING id",
    "INSERT INTO users AS u (tenant_id, id) SELECT t.id, :id FROM tenants t CROSS JOIN w WHERE t.id = :t RETURNING id",
    "WITH w AS (DELETE FROM pages WHERE tenant_id = :t RETURNING id) SELECT w.id FROM tenants t, w WHERE t.id = :t",
    "UPDATE users SET seen_at = :now - interval '1 day' WHERE tenant_id = :t AND seen_at < _now - interval '1 day'",
    "SELECT 1 FROM users WHERE tenant_id = :t AND seen_at - interval '1 day' > :now",
    "SELECT id FROM processes WHERE note = 'a; b'",
    "DO $$ BEGIN PERFORM 1; PERFORM 2; END $$",
    "SELECT id FROM processes FOR UPDATE; -- and that is all; really",
]
BAD = [
    ("SELECT 1 FROM pages", "pages: no tenant_id"),
    ("SELECT tenant_id FROM pages WHERE id = 1", "pages: no tenant_id"),
    ("SELECT 1 FROM pages p JOIN page_stats s ON s.tenant_id = p.tenant_id", "page_stats: no tenant_id"),
    ("SELECT 1 FROM pages p, users u WHERE p.tenant_id = :tenant", "users: no tenant_id"),
    ("SELECT 1 FROM pages WHERE tenant_id = :t UNION SELECT 1 FROM users WHERE id = :u", "users: no tenant_id"),
    ("SELECT 1 FROM pages WHERE tenant_id = :t AND id IN (SELECT page_id FROM page_likes)", "page_likes: no tenant_id"),
    ("WITH w AS (SELECT id FROM users) DELETE FROM pages WHERE tenant_id = :t", "users: no tenant_id"),
    ("DELETE FROM public.pages WHERE id = 1 -- AND tenant_id = :tenant", "pages: no tenant_id"),
    ("UPDATE users SET role = 'tenant_id = :tenant'", "users: no tenant_id"),
    ("SELECT 1 FROM tenants t JOIN pages p ON p.tenant_id = t.id", "pages: no tenant_id"),
    ("INSERT INTO pages (id) VALUES (1)", "pages: no tenant_id"),
    ("INSERT INTO pages (tenant_id, id) SELECT :tenant, w.id FROM unnest(:ids) w(id)", "INSERT … SELECT"),
    ("INSERT INTO pages (tenant_id, id) SELECT t.id, w.id FROM tenants t CROSS JOIN unnest(:ids) w", "INSERT … SELECT"),
    ("WITH n AS (INSERT INTO processes (id) SELECT 1) SELECT id FROM n", "INSERT … SELECT"),
    (
        "INSERT INTO outbox (tenant_id, kind) SELECT t.id, w.k FROM tenants t CROSS JOIN unnest(:k) w WHERE t.id = :t",
        "a drawn number in INSERT … SELECT",
    ),
    (
        "INSERT INTO users (tenant_id, id) SELECT t.id, :id FROM tenants t CROSS JOIN w WHERE t.id = :t RETURNING id",
        "RETURNING without an alias",
    ),
    (
        "WITH w AS (DELETE FROM pages WHERE tenant_id = :tenant RETURNING id) SELECT id FROM w",
        "SELECT from parts of the statement only",
    ),
    ("UPDATE users SET created_at = clock_timestamp() WHERE tenant_id = :t", "a volatile function in a change"),
    (
        "UPDATE users SET seen_at = seen_at + interval '1 day' WHERE tenant_id = :t",
        "an interval added to a column in a change",
    ),
    (
        "INSERT INTO users u (tenant_id) VALUES (:t) ON CONFLICT DO UPDATE SET x = 1 WHERE u.at < u.x - interval ''",
        "an interval added to a column in a change",
    ),
    ("SELECT p.ctid FROM pages p WHERE tenant_id = :tenant", "ctid"),
    ("DELETE FROM processes WHERE ctid = ANY (ARRAY(SELECT ctid FROM processes))", "ctid"),
    ("SET LOCAL ROLE x; SELECT 1", "several statements in a message"),
    ("SELECT set_config('plaudit.tenant', 'acme', true)", "set_config of the tenant"),
]


@pytest.mark.parametrize("sql", GOOD)
def test_the_rules_allow_what_is_right(sql: str) -> None:
    assert broken_rules(sql, tenant_tables()) == []


@pytest.mark.parametrize(("sql", "said"), BAD)
def test_the_rules_notice_what_is_wrong(sql: str, said: str) -> None:
    assert said in broken_rules(sql, tenant_tables())


def test_the_rules_read_every_string_of_a_module() -> None:
    source = """
def purge(table):
    \"\"\"SELECT FROM pages: a docstring.\"\"\"
    run(f"DELETE FROM {table} WHERE id = {1}", b"SELECT 2", text("SELECT 3"))
"""
    assert sorted(strings_in_functions(source)) == [
        ("purge", "DELETE FROM inserted WHERE id = inserted"),
        ("purge", "SELECT 2"),
        ("purge", "SELECT 3"),
    ]
