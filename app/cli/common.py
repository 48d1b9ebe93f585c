"""What the commands share: where the data is, and how results and errors are printed."""

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeVar

import click

if TYPE_CHECKING:
    from app.settings import Settings
    from tenants.security_events import SecurityEvent

Command = TypeVar("Command", bound=Callable[..., Any])

# SQLSTATEs of a database where a lock, a statement or an idle transaction took longer than it may.
LIMITS = {"25P03", "25P04", "55P03", "57014"}
# SQLSTATEs of a database without our tables, columns, roles or rights.
NOT_MIGRATED = {"42P01", "42501", "42703", "42704"}


def json_option(command: Command) -> Command:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)


@contextlib.contextmanager
def database(
    data_dir: Path, *, keep_old_version: bool = False, create: bool = False, direct: bool = False
) -> Iterator["Settings"]:
    """Point this process at the database: DATABASE_URL's, or the local one. Yields the settings with its addresses.

    A local database is created only with `create`: in the wrong folder a command fails instead. `direct` is past a
    pooler, where PLAUDIT_DIRECT_DATABASE_URL says how.
    """
    from app.run import direct_address, environment
    from app.run.data_folder import LocalServersError
    from app.run.local_servers import running
    from app.settings import Settings
    from tenants import db, logs

    settings = Settings.from_env()
    # Standard output is for the result.
    logs.configure(service="cli", log_format=settings.log_format or "console", stream=sys.stderr)
    with contextlib.ExitStack() as stack:
        if settings.database_url is None:
            if not create and not (data_dir / "secrets.json").exists():
                raise LocalServersError(
                    f"There is no Plaudit in {data_dir.absolute()}: start one with plaudit up, "
                    "or name another one with --data-dir or DATABASE_URL"
                )
            addresses = stack.enter_context(running(data_dir, keep_old_version=keep_old_version))
            settings = Settings.from_env(environment.with_addresses(addresses))
        if direct and settings.direct_database_url:
            direct_address.require_same(settings)
            db.configure(service_url=None, owner_url=settings.direct_database_url, pool_size=2)
        else:
            db.configure(service_url=settings.service_database_url, owner_url=settings.database_url, pool_size=2)
        try:
            yield settings
        finally:
            db.dispose()


@contextlib.contextmanager
def migrated_database(data_dir: Path, *, create: bool = False) -> Iterator["Settings"]:
    """The same; a local database is migrated to the newest schema first."""
    from app.settings import Settings
    from migrations.run import migrate
    from tenants import db

    is_local = Settings.from_env().database_url is None
    with database(data_dir, create=create) as settings:
        if is_local:
            migrate(db.owner_engine(), service_url=settings.service_database_url)
        yield settings


@contextlib.contextmanager
def inside_tenant(data_dir: Path, tenant_id: str) -> Iterator[Callable[[], contextlib.AbstractContextManager[Any]]]:
    """A function that opens transactions of an existing tenant; connects to Redis, where changes are published."""
    from tenants import registry
    from tenants.db import tenant_tx

    with migrated_database(data_dir) as settings:
        connect_redis(settings)
        with tenant_tx(tenant_id) as tx:
            registry.get(tx, tenant_id)
        yield lambda: tenant_tx(tenant_id)


def connect_redis(settings: "Settings", *, boards_timeout_s: float = 0.5) -> str:
    """Point this process at Redis, where changes are published. Returns the address of the boards' server."""
    from tenants import redis as tenants_redis

    redis_url = settings.redis_url or "redis://127.0.0.1:6379/0"
    tenants_redis.configure(
        boards_url=redis_url,
        queue_url=settings.queue_redis_url or redis_url,
        boards_timeout_s=boards_timeout_s,
    )
    return redis_url


def audit(event: "SecurityEvent", tenant_id: str, **data: Any) -> None:
    """Write the audit line to standard error, since standard output is for the result: on a terminal not as JSON."""
    from tenants import logs

    logs.configure(service="cli", stream=sys.stderr)
    logs.bind(tenant_id=tenant_id or None, user_id="command line")
    logs.audit(event, **data)


def show(result: Mapping[str, Any], *, as_json: bool, text: str) -> None:
    """One result: as JSON, or as a sentence."""
    click.echo(json.dumps(result, default=str) if as_json else text)


def show_table(rows: Sequence[Mapping[str, Any]], *, as_json: bool, columns: Sequence[str], empty: str) -> None:
    """Many results: as JSON, or as a table."""
    if as_json:
        click.echo(json.dumps(list(rows), default=str))
    elif not rows:
        click.echo(empty)
    else:
        from rich.console import Console
        from rich.table import Table

        table = Table(box=None, header_style="bold", pad_edge=False)
        for column in columns:
            table.add_column(column.replace("_", " "), overflow="fold")
        for row in rows:
            table.add_row(*("" if row[column] is None else str(row[column]) for column in columns))
        Console().print(table)


class SetDone(Protocol):
    """Says how much of the work is done. The remark is shown after the rate."""

    def __call__(self, completed: int, remark: str = "", /) -> None: ...


@contextlib.contextmanager
def progress(unit: str, total: int | None, done: int = 0, *, quiet: bool, verb: str = "Importing") -> Iterator[SetDone]:
    """A progress bar with the rate, on standard error if that is a terminal. `total` None: nobody knows."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        Task,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text(f"{task.speed or 0:>10,.0f} {unit}/s")

    remark = TextColumn("{task.fields[remark]}")
    columns = (TextColumn(verb), BarColumn(), MofNCompleteColumn(), Rate(), TimeRemainingColumn(), remark)
    with Progress(*columns, console=Console(stderr=True), disable=quiet) as bar:
        task = bar.add_task(verb, total=total, completed=done, remark="")

        def set_done(completed: int, remark: str = "", /) -> None:
            bar.update(task, completed=completed, remark=remark)

        yield set_done


@contextlib.contextmanager
def clear_errors() -> Iterator[None]:
    """Print an error in one line, and exit with 1. A bug still shows its traceback."""
    try:
        yield
    except BrokenPipeError:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115, PTH123  the reader closed the pipe
        sys.exit(1)
    except Exception as error:
        message = _message_for(error)
        if message is None:
            raise
        fail(message)


def _message_for(error: Exception) -> str | None:
    """The message for an error that a user can act on; None for a bug.

    The classes are imported here, after the error: `plaudit --help` must not wait for SQLAlchemy.
    """
    from sqlalchemy.exc import DBAPIError, OperationalError, ProgrammingError

    from app.run.data_folder import LocalServersError
    from app.run.supervisor import UpError
    from app.settings import SettingsError
    from tenants.errors import DomainError
    from tenants.pipelines import READ_ONLY

    if isinstance(error, DomainError | LocalServersError | SettingsError | UpError):
        return str(error)
    if isinstance(error, DBAPIError) and getattr(error.orig, "sqlstate", None) == READ_ONLY:
        return f"The database is read-only ({_first_line(error)}): check that DATABASE_URL names the primary server"
    if isinstance(error, DBAPIError) and getattr(error.orig, "sqlstate", None) in LIMITS:
        return f"PostgreSQL ended a statement at its limit of time ({_first_line(error)}): try again when load is low"
    if isinstance(error, OperationalError):
        return (
            f"The database cannot be reached ({_first_line(error)}): "
            "check DATABASE_URL, or unset it to use the local server"
        )
    if isinstance(error, ProgrammingError) and getattr(error.orig, "sqlstate", None) in NOT_MIGRATED:
        return (
            f"The database's schema or rights do not fit this release ({_first_line(error)}): "
            "run plaudit migrate, as the owner of the database"
        )
    return None


def fail(message: str) -> NoReturn:
    click.echo(f"plaudit: {message}", err=True)
    sys.exit(1)


def _first_line(error: Any) -> str:
    lines = str(error.orig).strip().splitlines()
    return lines[0].strip() if lines else type(error.orig).__name__
