"""What is examined: settings, addresses, and ways to read that cannot write."""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from redis import Redis
from sqlalchemy import Connection, Engine, text

from app.run import data_folder
from app.settings import Settings
from tenants import db
from tenants.redis import make_client

# No check may keep a busy server longer: what takes longer is reported as not examined.
STATEMENT_TIMEOUT_MS = 10_000
REDIS_TIMEOUT_S = 2.0


@dataclass(frozen=True)
class Installation:
    """One Plaudit: where it is, and as of when it is examined."""

    settings: Settings
    data_dir: Path
    # Its PostgreSQL is the data folder's own.
    is_local: bool
    # Something besides this command uses the servers: otherwise there are no workers to be missed.
    is_running: bool
    now: datetime
    boards: "Redis"
    queue: "Redis"
    # Names of the servers of Redis that were found away, and need no more waiting for.
    unreachable: frozenset[str] = frozenset()

    @contextlib.contextmanager
    def reading(self) -> Iterator[Connection]:
        """A read-only transaction as the owner of the database."""
        with read_only(db.owner_engine()) as connection:
            yield connection


def of(settings: Settings, data_dir: Path, *, is_local: bool, now: datetime) -> Installation:
    """The installation that this process is connected to (`tenants.db.configure`)."""
    redis_url = settings.redis_url or "redis://127.0.0.1:6379/0"
    return Installation(
        settings=settings,
        data_dir=data_dir,
        is_local=is_local,
        is_running=not is_local or not _started_here(data_dir),
        now=now,
        boards=make_client(redis_url, timeout_s=REDIS_TIMEOUT_S),
        queue=make_client(settings.queue_redis_url or redis_url, timeout_s=REDIS_TIMEOUT_S),
    )


@contextlib.contextmanager
def read_only(engine: Engine) -> Iterator[Connection]:
    with engine.execution_options(isolation_level="READ COMMITTED").begin() as connection:
        connection.execute(text("SET TRANSACTION READ ONLY"))
        connection.execute(text(f"SET LOCAL statement_timeout = {STATEMENT_TIMEOUT_MS}"))
        yield connection


def _started_here(data_dir: Path) -> bool:
    """Whether the local servers were started by this command, for this command."""
    state = data_folder.read_state(data_dir)
    return state is not None and state["pid"] == os.getpid()
