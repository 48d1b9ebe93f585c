"""The schema: its version, its indexes, the partitions ahead, and whether logins see every row and have their roles."""

from collections.abc import Iterable, Iterator

from sqlalchemy import Connection, Dialect, Index, Table, UniqueConstraint, inspect, text
from sqlalchemy.dialects import postgresql
from sqlalchemy.engine import make_url
from sqlalchemy.schema import CreateIndex

from analytics.maintenance import MONTHS_AHEAD, month_ahead, partition_of
from app.doctor.findings import Finding, ok, problem, some, warn
from app.doctor.installation import Installation
from app.run.backups import sees_every_row
from migrations import distribution, roles
from migrations.head import head_revision
from migrations.run import current_revision, load_models
from tenants.db import Base

ABOUT = "Schema"


def migrations(installation: Installation) -> Iterable[Finding]:
    with installation.reading() as connection:
        revision = current_revision(connection)
    head = head_revision()
    if revision is None or revision < head:
        yield problem(
            ABOUT,
            f"It is at {revision or 'nothing'}, and this release needs {head}",
            why="the processes of this release are not ready on an older schema",
            # An empty database has nothing to back up.
            advice="plaudit migrate" if revision is None else "plaudit backup, then plaudit migrate",
        )
    elif revision > head:
        yield warn(
            ABOUT,
            f"It is at {revision}, newer than this release's {head}",
            why="that is fine while a release is rolled out, and not for long",
            advice="upgrade Plaudit on this machine",
        )
    else:
        yield ok(ABOUT, f"It is at {revision}, the newest")


def visible_rows(installation: Installation) -> Iterable[Finding]:
    with installation.reading() as connection:
        if not sees_every_row(connection):
            yield problem(
                ABOUT,
                "The login of DATABASE_URL does not see every row",
                why="row-level security hides tenants from it: backups, maintenance and this command miss them",
                advice="use the login that owns the tables",
            )


def usable_roles(installation: Installation) -> Iterable[Finding]:
    """Of the login that transactions of requests and jobs use."""
    url = installation.settings.service_database_url
    with installation.reading() as connection:
        login = (make_url(url).username if url else None) or roles.current_user(connection)
        if missing := roles.not_granted(connection, login):
            yield problem(
                ABOUT,
                f"The login of {'PLAUDIT_SERVICE_' if url else ''}DATABASE_URL may not use {' and '.join(missing)}",
                why="every transaction switches to one of these roles, and fails",
                advice=f"as a superuser: {roles.grant_to(connection, login)}",
            )


def indexes(installation: Installation) -> Iterable[Finding]:
    """Compared with the models, by name."""
    load_models()
    with installation.reading() as connection:
        if current_revision(connection) != head_revision():
            return
        valid, is_distributed = _valid_indexes(connection), distribution.is_distributed(connection)
        tables = set(inspect(connection).get_table_names())
    faulty = False
    for table in Base.metadata.sorted_tables:
        for name, remedy in _expected(table) if table.name in tables else ():
            if valid.get(name):
                continue
            faulty = True
            yield problem(
                ABOUT,
                f"The index {name} of {table.name} is {'missing' if name not in valid else 'not valid'}",
                why="statements read the whole table instead; a unique one also keeps anything from being paid twice",
                advice=remedy if name not in valid else _repair(name, remedy, is_distributed=is_distributed),
            )
    if not faulty:
        yield ok(ABOUT, "Every index exists and is valid")


def partitions(installation: Installation) -> Iterable[Finding]:
    """The audit's: of this month and the next ones."""
    today = installation.now.date()
    with installation.reading() as connection:
        missing = [
            ahead
            for ahead in range(MONTHS_AHEAD + 1)
            if connection.scalar(text("SELECT to_regclass(:name)"), {"name": partition_of(month_ahead(today, ahead))})
            is None
        ]
    if missing:
        finding = problem if missing[0] <= 1 else warn
        yield finding(
            ABOUT,
            f"action_events has no partition {some(partition_of(month_ahead(today, ahead)) for ahead in missing)}",
            why="actions of that month cannot be stored",
            advice="start cron and a worker, which create them every hour; or run plaudit migrate, which does so now",
        )
    else:
        yield ok(ABOUT, f"action_events has its partitions, {MONTHS_AHEAD} months ahead")


def _valid_indexes(connection: Connection) -> dict[str, bool]:
    rows = connection.execute(
        text("""
            SELECT c.relname, i.indisvalid AND i.indisready AS is_valid
            FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
            WHERE c.relnamespace = 'public'::regnamespace
        """)
    )
    return {row.relname: row.is_valid for row in rows}


def _expected(table: Table) -> Iterator[tuple[str, str]]:
    """The names of a table's indexes, each with the statement that creates it."""
    constraints = [table.primary_key, *(c for c in table.constraints if isinstance(c, UniqueConstraint))]
    for constraint in constraints:
        kind = "PRIMARY KEY" if constraint is table.primary_key else "UNIQUE"
        columns = ", ".join(column.name for column in constraint.columns)
        yield (
            str(constraint.name),
            f"ALTER TABLE {table.name} ADD CONSTRAINT {constraint.name} {kind} ({columns})",
        )
    for index in table.indexes:
        yield str(index.name), _statement(index)


def _repair(name: str, remedy: str, *, is_distributed: bool) -> str:
    """On a Citus, an index that could not be created is missing on the workers: there is nothing to rebuild."""
    return f"DROP INDEX IF EXISTS {name}; {remedy}" if is_distributed else f"REINDEX INDEX CONCURRENTLY {name}"


def _statement(index: Index) -> str:
    """Without a lock on the table, where PostgreSQL can: not on a partitioned one."""
    dialect: Dialect = postgresql.dialect()  # type: ignore[no-untyped-call]
    created = " ".join(str(CreateIndex(index).compile(dialect=dialect)).split())
    is_partitioned = index.table is not None and index.table.dialect_kwargs.get("postgresql_partition_by") is not None
    return created if is_partitioned else created.replace(" INDEX ", " INDEX CONCURRENTLY ", 1)
