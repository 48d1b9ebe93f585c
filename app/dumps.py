"""Backups: PostgreSQL's own dumps, which any newer server can read.

The tools are the wheel's, or the system's where those are newer than the server needs them to be.
"""

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from urllib.parse import unquote, urlsplit

from sqlalchemy import Engine, inspect, text

from app.embedded import wheel_binaries
from tenants.errors import Conflict, Invalid, Unavailable
from tenants.rls import create_roles


def write(database_url: str, file: Path) -> int:
    """Dump the database to `file`, in one step: a dump that fails leaves no file, nor touches an older one."""
    target = file.absolute()
    if not target.parent.is_dir():
        raise Invalid(f"There is no folder {target.parent}")
    with tempfile.NamedTemporaryFile(dir=target.parent, prefix=f".{target.name}.") as unfinished:
        _run(
            [
                str(_tool("pg_dump", database_url)),
                *("--format=custom", "--no-owner", "--enable-row-security", "--lock-wait-timeout=10000"),
                *("--schema=public", f"--file={unfinished.name}"),
            ],
            database_url,
        )
        os.fsync(unfinished.fileno())
        size = Path(unfinished.name).stat().st_size
        Path(unfinished.name).replace(target)
        Path(unfinished.name).touch(mode=0o600)  # what the context manager removes
    return size


def read(database_url: str, file: Path, engine: Engine) -> None:
    """Replace the schema by the dump's, all or nothing."""
    tool = _tool("pg_restore", database_url)
    listed = subprocess.run([str(tool), "--list", str(file)], capture_output=True, text=True, check=False)
    if listed.returncode or "alembic_version" not in listed.stdout:
        raise Invalid(f"{file} is not a backup of Plaudit")
    with engine.begin() as connection:
        for statement in create_roles():
            connection.execute(text(statement))
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "restore.sql"
        _run([str(tool), "--no-owner", f"--file={script}", str(file)], database_url)
        body = _portable(script.read_text())
        script.write_text(f"SET lock_timeout = '10s';\nDROP SCHEMA public CASCADE;\nCREATE SCHEMA public;\n{body}\n")
        options = ["--no-psqlrc", "--quiet", "--single-transaction", "-v", "ON_ERROR_STOP=1"]
        _run([str(tool.with_name("psql")), *options, "-f", str(script)], database_url)
    with engine.begin() as connection:
        for statement in create_roles():
            connection.execute(text(statement))


def holds_data(engine: Engine) -> bool:
    with engine.connect() as connection:
        if not inspect(connection).has_table("tenants"):
            return False
        return bool(connection.scalar(text("SELECT EXISTS (SELECT FROM tenants)")))


def _portable(script: str) -> str:
    """Without what a fresh schema has already, and without settings that an older server does not know."""
    unwanted = re.compile(
        r"^(CREATE SCHEMA public;|SET transaction_timeout = 0;|COMMENT ON SCHEMA public .*;)$", re.MULTILINE
    )
    return unwanted.sub("", script)


def _tool(name: str, database_url: str) -> Path:
    """The tool of that name which is at least as new as the server."""
    import psycopg

    try:
        with psycopg.connect(database_url, connect_timeout=5) as connection:
            server = connection.info.server_version // 10_000
    except psycopg.OperationalError as error:
        raise Unavailable(
            f"The database cannot be reached ({str(error).splitlines()[0]}): check DATABASE_URL"
        ) from None
    shipped = wheel_binaries().postgres.with_name(name)
    found = shutil.which(name)
    candidates = [
        shipped,
        *([Path(found)] if found else []),
        *sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}")),
    ]
    for candidate in candidates:
        if candidate.exists() and _major_version(candidate) >= server:
            return candidate
    raise Conflict(f"The server is PostgreSQL {server} and no {name} here is that new: install its client tools")


def _major_version(tool: Path) -> int:
    said = subprocess.run([str(tool), "--version"], capture_output=True, text=True, check=False).stdout
    found = re.search(r"\) (\d+)", said)
    return int(found[1]) if found else 0


def _run(command: list[str], database_url: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=_connection_env(database_url))
    if done.returncode:
        lines = [line for line in done.stderr.strip().splitlines() if "error" in line.lower() or "ERROR" in line]
        said = (lines or done.stderr.strip().splitlines() or ["it said nothing"])[0]
        raise Unavailable(f"{Path(command[0]).name} failed: {said}")


def _connection_env(database_url: str) -> dict[str, str]:
    """The address as libpq's variables: a password never stands on a command line."""
    parts = urlsplit(database_url)
    env = {
        "PGHOST": parts.hostname,
        "PGPORT": str(parts.port) if parts.port else None,
        "PGUSER": unquote(parts.username) if parts.username else None,
        "PGPASSWORD": unquote(parts.password) if parts.password else None,
        "PGDATABASE": unquote(parts.path.lstrip("/")),
        "PGCONNECT_TIMEOUT": "5",
    }
    return {**os.environ, **{name: value for name, value in env.items() if value is not None}}
