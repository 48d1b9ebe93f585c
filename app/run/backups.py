"""Backups: PostgreSQL's own dumps, which any newer server can read.

The tools are the wheel's, or the system's where the server is newer than the wheel's.

A dump is a program: its SQL runs as the owner. What pg_restore lists of it is compared with what a dump of ours can
contain, which finds other people's databases and clumsy attacks, but no forged definition of an object that we do have.
(psql runs no programs of the machine for it: pg_restore's scripts forbid that, by \\restrict.)
"""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from sqlalchemy import Connection, Engine, inspect, text
from sqlalchemy.engine import URL

from app.run import environment, revocations
from app.run.revocations import Restored
from app.run.server_files import wheel_binaries
from migrations import roles
from tenants.engines import disconnect_others, is_pooled
from tenants.errors import Conflict, Invalid, Unavailable
from tenants.rls import create_roles

_UNWANTED = re.compile(
    r"(CREATE SCHEMA public;|SET transaction_timeout = 0;|COMMENT ON SCHEMA public .*;"
    # Options of single columns: we set none, and some servers store options of their own there.
    r"|ALTER TABLE ONLY \S+ ALTER COLUMN \S+ SET \([^()]*\);)\n?"
)
# What a backup of ours contains, as pg_restore --list shows it: kind, schema, name and owner.
_OURS = re.compile(
    r"""(?x)
    ( TABLE | TABLE\ DATA | TABLE\ ATTACH | INDEX | INDEX\ ATTACH | CONSTRAINT | FK\ CONSTRAINT | CHECK\ CONSTRAINT
      | DEFAULT | SEQUENCE | SEQUENCE\ OWNED\ BY | SEQUENCE\ SET | ROW\ SECURITY | POLICY )\ public\ \S.*
    | (FUNCTION\ public | ACL\ public\ FUNCTION)\ ( record_events | blank_audit | make_month_of_actions
      | ensure_users | apply_likes | count_rejections | count_unknown_addresses | write_events | write_page_events
      | admit_visits | add_named_visitors | add_views | add_waiting_views | count_waiting_views
      | apply_profiles | lock_claims_and_profiles | blank_erased
      | current_server | claim_facts | read_claim_facts | read_pending_users | record_payments )\(.*
    | TRIGGER\ public\ users\ blank_erased\ .*
    | ACL\ public\ (TABLE | COLUMN | SEQUENCE)\ \S.*
    | SCHEMA\ -\ public\ .* | (ACL | COMMENT)\ -\ SCHEMA\ public\ .*
    """
)
_OWNERS_POLICY = re.compile(r"^(CREATE POLICY owner ON \S+ TO )\S+( USING )")


# On a Citus: one connection to each worker, so that all rows of a tenant are of one moment. Other servers ignore it.
_ONE_SNAPSHOT_A_NODE = "-c citus.max_adaptive_executor_pool_size=1"


def write(file: Path, engine: Engine) -> int:
    """Dump the database to `file`, in one step: a dump that fails leaves no file and does not touch an older one."""
    refuse_pooler(engine)
    _refuse_partial(engine)
    target = file.absolute()
    if not target.parent.is_dir():
        raise Invalid(f"There is no folder {target.parent}")
    if target.exists() and not target.is_file():
        raise Invalid(f"{target} is not a file")
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    unfinished = Path(name)
    try:
        _run(
            [
                str(_tool("pg_dump", engine)),
                *("--format=custom", "--no-owner", "--enable-row-security", "--lock-wait-timeout=10000"),
                # With a salt, whoever has the backup could compute who a visitor was.
                *("--schema=public", "--exclude-table-data=visitor_salts", f"--file={unfinished}"),
            ],
            engine,
        )
        os.fsync(handle)
        size = os.fstat(handle).st_size
        unfinished.replace(target)  # a link is replaced, not followed
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    finally:
        os.close(handle)
    return size


def read(file: Path, engine: Engine, *, trust: bool = False, revoke_all: bool = False) -> Restored:
    """Replace the schema by the dump's, all or nothing. A dump with unknown objects needs `trust`.

    What the replaced database has revoked since the dump is revoked in the same transaction.
    """
    refuse_pooler(engine)
    _refuse_partial(engine)  # revocations that this login does not see could not be applied again
    tool = _tool("pg_restore", engine)
    listed = subprocess.run([str(tool), "--list", str(file)], capture_output=True, text=True, check=False)
    if listed.returncode or "alembic_version" not in listed.stdout:
        raise Invalid(f"{file} is not a backup of Plaudit")
    if not trust and (unknown := unknown_objects(listed.stdout)):
        raise Invalid(
            f"{file} contains objects that no backup of Plaudit has ({unknown[0]}; {len(unknown)} in all), and its SQL "
            "would run as the owner of the database: give --trust only if you know where it comes from"
        )
    with engine.begin() as connection:
        roles.require_creatable(connection)
        for statement in create_roles():
            connection.execute(text(statement))
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "restore.sql"
        _run([str(tool), "--no-owner", f"--file={script}", str(file)], engine)
        portable = script.with_name("portable.sql")
        with script.open() as lines, portable.open("w") as out:
            out.write(f"SET lock_timeout = '10s';\n{revocations.copying()}{_DROP_EVERYTHING}")
            out.writelines(_portable(lines))
            out.write(revocations.applying(revoke_all=revoke_all))
        options = ["--no-psqlrc", "--quiet", "--no-align", "--tuples-only", "--single-transaction"]
        restore = [str(tool.with_name("psql")), *options, "-v", "ON_ERROR_STOP=1", "-f", str(portable)]
        restored = revocations.parse(_run(restore, engine))
    with engine.begin() as connection:
        for statement in create_roles():
            connection.execute(text(statement))
        # Other sessions still have plans for the tables of before.
        disconnect_others(connection)
    return restored


# Not the schema itself: an extension may live there (Citus), with all that it knows.
_DROP_EVERYTHING = """
DO $$ DECLARE _drop text; BEGIN
    SET LOCAL client_min_messages = warning;
    FOREACH _drop IN ARRAY ARRAY(  -- all of them before the first is dropped: with one others go
        SELECT format('DROP %s IF EXISTS %s CASCADE',
                      CASE c.relkind WHEN 'v' THEN 'VIEW' WHEN 'm' THEN 'MATERIALIZED VIEW' WHEN 'S' THEN 'SEQUENCE'
                                     WHEN 'f' THEN 'FOREIGN TABLE' WHEN 'c' THEN 'TYPE' ELSE 'TABLE' END,
                      c.oid::regclass)
        FROM pg_class c
        WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm', 'S', 'f', 'c')
          AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid
                                                   AND (d.deptype = 'e' OR (d.deptype = 'i' AND c.relkind = 'S')))
        UNION ALL
        SELECT format('DROP ROUTINE IF EXISTS %s CASCADE', f.oid::regprocedure)
        FROM pg_proc f WHERE f.pronamespace = 'public'::regnamespace
          AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_proc'::regclass AND d.objid = f.oid
                                                   AND d.deptype = 'e')
        UNION ALL
        SELECT format('DROP TYPE IF EXISTS %s CASCADE', y.oid::regtype)
        FROM pg_type y WHERE y.typnamespace = 'public'::regnamespace AND y.typtype IN ('e', 'd')
          AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_type'::regclass AND d.objid = y.oid
                                                   AND d.deptype = 'e'))
    LOOP
        EXECUTE _drop;
    END LOOP;
END $$;
"""


def unknown_objects(listing: str) -> list[str]:
    """The objects in a list by pg_restore that no backup of ours contains."""
    entries = [re.sub(r"^\d+; \d+ \d+ ", "", line) for line in listing.splitlines() if line and line[0] != ";"]
    return [entry.strip() for entry in entries if not _OURS.fullmatch(entry)]


def has_data(engine: Engine) -> bool:
    with engine.connect() as connection:
        if not inspect(connection).has_table("tenants"):
            return False
        return bool(connection.scalar(text("SELECT count(*) > 0 FROM (SELECT id FROM tenants LIMIT 1) t")))


def _portable(lines: Iterable[str]) -> Iterator[str]:
    """The script without what depends on its server: the owner's policies become the new owner's, and what a fresh
    schema has already, or another server does not know, is left out. Rows are not changed."""
    inside_rows = False
    for line in lines:
        if inside_rows:
            inside_rows = line != "\\.\n"
            yield line
        elif not _UNWANTED.fullmatch(line):
            inside_rows = line.startswith("COPY ") and line.endswith(" FROM stdin;\n")
            yield _OWNERS_POLICY.sub(r"\1CURRENT_USER\2", line)


def refuse_pooler(engine: Engine) -> None:
    """Refuse a connection that a pooler lends from transaction to transaction.

    PostgreSQL's tools change their session (search_path, row_security, timeouts), which others would be lent then.
    """
    with engine.connect() as connection:
        if is_pooled(connection):
            raise Conflict(
                "The database is behind a connection pooler, through which it cannot be backed up or restored: "
                "set PLAUDIT_DIRECT_DATABASE_URL to the address of the server itself"
            )


def _refuse_partial(engine: Engine) -> None:
    """Refuse a login that is not the owner: row-level security would silently leave rows out of its dump."""
    with engine.connect() as connection:
        if not sees_every_row(connection):
            raise Conflict("This login does not see every row: use the login that owns the tables in DATABASE_URL")


def sees_every_row(connection: Connection) -> bool:
    """Whether no policy hides rows from this login."""
    return bool(
        connection.scalar(text("SELECT rolsuper OR rolbypassrls FROM pg_roles WHERE rolname = current_user"))
        or connection.scalar(
            text("""
                SELECT NOT EXISTS (
                    SELECT FROM pg_class c WHERE c.relnamespace = 'public'::regnamespace AND c.relforcerowsecurity
                    AND NOT EXISTS (SELECT FROM pg_policies p WHERE p.schemaname = 'public' AND p.tablename = c.relname
                                    AND p.policyname = 'owner' AND current_user = ANY (p.roles)))
            """)
        )
    )


def _tool(name: str, engine: Engine) -> Path:
    """The first tool of that name that is at least as new as the server."""
    with engine.connect() as connection:
        server = int(connection.scalar(text("SHOW server_version_num")) or 0) // 10_000
    shipped = wheel_binaries().postgres.with_name(name)
    installed = shutil.which(name)
    candidates = [
        shipped,
        *([Path(installed)] if installed else []),
        *sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}")),
    ]
    for candidate in candidates:
        if candidate.exists() and _major_version(candidate) >= server:
            return candidate
    raise Conflict(f"The server is PostgreSQL {server} and no {name} is that new: install its client tools")


def _major_version(tool: Path) -> int:
    output = subprocess.run([str(tool), "--version"], capture_output=True, text=True, check=False).stdout
    major = re.search(r"\) (\d+)", output)
    return int(major[1]) if major else 0


def _run(command: list[str], engine: Engine) -> str:
    """Run a tool on the database; returns its output. The password is in the environment, never on a command line."""
    url = engine.url
    env = environment.inherited(
        PGCONNECT_TIMEOUT="5",
        PGOPTIONS=_ONE_SNAPSHOT_A_NODE,
        **({"PGPASSWORD": str(url.password)} if url.password else {}),
    )
    address = URL.create(
        "postgresql", url.username, host=url.host, port=url.port, database=url.database, query=url.query
    ).render_as_string()
    where = [] if Path(command[0]).name == "pg_restore" else [f"--dbname={address}"]
    done = subprocess.run([*command, *where], capture_output=True, text=True, check=False, env=env)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no message"]
        message = next((line for line in lines if "error" in line.lower()), lines[0])
        raise Unavailable(f"{Path(command[0]).name} failed: {message}")
    return done.stdout
