"""Migrate a database to the newest schema. Any number of processes may do so at once."""

import importlib
import pkgutil
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, Engine, inspect, text
from sqlalchemy.engine import make_url

from migrations import distribution, roles
from migrations.distribution import ADVISORY_LOCK
from migrations.head import head_revision
from tenants.db import PLATFORM_ROLE, SERVICE_ROLE
from tenants.errors import Conflict

if TYPE_CHECKING:  # imported when there is something to migrate: every start asks
    from alembic.config import Config

LOCK_TIMEOUT = "10s"


def migrate(engine: Engine, *, service_url: str | None = None, revision: str = "head") -> tuple[str | None, str]:
    """Upgrade as the owner. Returns the old and new revisions. Safe to run twice, or at once.

    Each migration of an existing database is a transaction of its own, so that no table is locked for longer than its
    own migration takes; one that fails leaves the database at the revision before it, which every release can use. A
    new database is created in one.
    """
    wanted = head_revision() if revision == "head" else revision
    revisions: list[str | None] = []
    while not revisions or (revisions[-1] or "") < wanted:
        with engine.execution_options(isolation_level="READ COMMITTED").begin() as connection:
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": ADVISORY_LOCK})
            # A migration waits this long for a locked table, then fails: all other queries wait behind it meanwhile.
            connection.execute(text(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'"))
            before = current_revision(connection)
            if before is not None and before > head_revision():
                raise Conflict(
                    f"The database is at schema {before}, newer than this release's {head_revision()}: upgrade Plaudit"
                )
            roles.require_creatable(connection)
            if before is None or before < wanted:
                _upgrade(connection, wanted if before is None else "+1")
            revisions += [before, current_revision(connection)]
            _finish(connection, service_url)
            is_distributed = distribution.is_distributed(connection)
    if is_distributed:
        distribution.distribute_all(engine)
    return revisions[0], revisions[-1] or wanted


def _finish(connection: Connection, service_url: str | None) -> None:
    login = make_url(service_url).username if service_url else None
    if login is None or login == roles.current_user(connection):
        roles.require_usable(connection)
    else:
        roles.grant_to_login(connection, login)
    connection.execute(text(f"GRANT SELECT ON alembic_version TO {SERVICE_ROLE}, {PLATFORM_ROLE}"))
    if connection.scalar(text("SELECT to_regproc('make_month_of_actions') IS NOT NULL")):
        connection.execute(_CREATE_NEXT_MONTHS)  # an old backup has no partition for today


def _upgrade(connection: Connection, revision: str) -> None:
    from alembic import command

    config = alembic_config()
    config.attributes["connection"] = connection
    command.upgrade(config, revision)


_CREATE_NEXT_MONTHS = text("""
    SELECT make_month_of_actions((date_trunc('month', now() AT TIME ZONE 'UTC') + n * interval '1 month')::date)
    FROM generate_series(0, 2) n
""")


def current_revision(connection: Connection) -> str | None:
    if not inspect(connection).has_table("alembic_version"):
        return None
    return connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one_or_none()


def alembic_config() -> "Config":
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent))
    return config


def load_models() -> None:
    """Import every module of the domain, so that Base knows every table."""
    for package in ("tenants", "analytics"):
        for module in pkgutil.walk_packages(importlib.import_module(package).__path__, prefix=f"{package}."):
            importlib.import_module(module.name)
