"""The statements that cost most, where PostgreSQL keeps count: the extension pg_stat_statements.

It counts for the whole server, so it is looked for in our database and in `postgres`. (The local server has it there:
in ours it would be in the way of a restore, which replaces the schema as a role that may not drop an extension.)
"""

import re
from dataclasses import dataclass

from sqlalchemy import Connection, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError

from app.doctor.findings import Finding, ok
from app.doctor.installation import Installation, read_only
from tenants.engines import make_engine

ABOUT = "Statements"
MAX_STATEMENTS = 10
MAX_CHARS = 160
NOT_LOADED = "55000"
_LITERAL = re.compile(r"'[^']*'")


@dataclass(frozen=True)
class Statement:
    text: str
    calls: int
    total_ms: float
    mean_ms: float
    share: float


def most_expensive(installation: Installation) -> tuple[list[Statement], list[Finding]]:
    """The ten that took most time since the counters were last reset, and what is to be said about them."""
    url = make_url(installation.settings.database_url or "")
    why_not = "pg_stat_statements is not installed, so the most expensive statements are not known (docs/operating.md)"
    for database in dict.fromkeys([str(url.database), "postgres"]):
        engine = make_engine(url.set(database=database).render_as_string(hide_password=False), pool_size=1)
        try:
            with read_only(engine) as connection:
                found = _read(connection, str(url.database))
        except DBAPIError as error:
            if getattr(error.orig, "sqlstate", None) == NOT_LOADED:
                why_not = "pg_stat_statements is installed, but not in shared_preload_libraries (docs/operating.md)"
            continue
        finally:
            engine.dispose()
        if found is not None:
            hidden = [statement for statement in found if statement.text.startswith("<insufficient privilege>")]
            said = f"{len(hidden)} of them are hidden from this login: GRANT pg_read_all_stats" if hidden else ""
            return found, [ok(ABOUT, said)] if said else []
    return [], [ok(ABOUT, why_not)]


def shorten(statement: str) -> str:
    """On one line and without values. (PostgreSQL has replaced most by $1, but not those of utility statements.)"""
    line = _LITERAL.sub("'…'", " ".join(statement[: 20 * MAX_CHARS].split()))
    return line if len(line) <= MAX_CHARS else line[: MAX_CHARS - 1] + "…"


def _read(connection: Connection, database: str) -> list[Statement] | None:
    """None: the extension is not in this database."""
    schema = connection.scalar(
        text(
            "SELECT quote_ident(nspname) FROM pg_extension e JOIN pg_namespace n ON n.oid = extnamespace"
            " WHERE extname = 'pg_stat_statements'"
        )
    )
    if schema is None:
        return None
    rows = connection.execute(
        text(f"""
            SELECT query, sum(calls) AS calls, sum(total_exec_time) AS total_ms,
                   sum(sum(total_exec_time)) OVER () AS all_ms
            FROM {schema}.pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid
            WHERE d.datname = :database AND calls > 0 GROUP BY query ORDER BY total_ms DESC LIMIT :most
        """),  # noqa: S608  quoted by the server
        {"database": database, "most": MAX_STATEMENTS},
    )
    return [
        Statement(
            text=shorten(row.query or ""),
            calls=int(row.calls),
            total_ms=round(row.total_ms, 1),
            mean_ms=round(row.total_ms / int(row.calls), 3),
            share=round(row.total_ms / row.all_ms, 3) if row.all_ms else 0.0,
        )
        for row in rows
    ]
