"""What a worker or cron needs of PostgreSQL before it begins: logins that work, on a server that accepts writes.

Without that it would take jobs from workers that can do them, and fail them. A login that is refused ends the process
in one line: only somebody who changes the settings can repair that. A server that is down, starting or read-only is
waited for, without taking a job: a process that ended would need a service manager that starts it again however often
that is, which systemd, for one, does not by default.
"""

import re
import signal
import sys
import time

import structlog
from sqlalchemy import Engine, text
from sqlalchemy.exc import DBAPIError

from app.settings import Settings
from tenants import db

RETRY_S = 1.0
# The driver has no code for why a connection was refused. A server that says it in another language is waited for.
REFUSED = re.compile(
    r"authentication failed|no password supplied|not permitted to log in|no pg_hba\.conf entry"
    r"|(role|database) .{1,200} does not exist|permission denied for database|no such (user|database)"
)
READ_ONLY = "it is read-only"

log = structlog.get_logger()


def require_owner(settings: Settings) -> None:
    """End this process if it has only the service's login."""
    if settings.database_url is None:
        raise SystemExit("plaudit: worker and cron need the owner's login: set DATABASE_URL")


def wait_for(settings: Settings) -> None:
    """Return when PostgreSQL accepts writes; end this process if it refuses a login. Needs `tenants.db.configure`."""
    # Until `workers.run` has its own: the first process of a container has none.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: sys.exit(0))
    logins = {"DATABASE_URL": db.owner_engine()}
    if settings.service_database_url:
        logins["PLAUDIT_SERVICE_DATABASE_URL"] = db.service_engine()
    began, is_waiting = time.monotonic(), False
    for variable, engine in logins.items():
        while (problem := _problem(engine)) is not None:
            if REFUSED.search(problem):
                raise SystemExit(f"plaudit: The database refuses the login ({problem}): check {variable}")
            if not is_waiting:
                data = {"variable": variable, "error": problem}
                log.warning("waiting for PostgreSQL, before any job", action="database.awaited", data=data)
            is_waiting = True
            time.sleep(RETRY_S)
    if is_waiting:
        waited_s = round(time.monotonic() - began, 1)
        log.info("PostgreSQL is available", action="database.available", data={"waited_s": waited_s})


def _problem(engine: Engine) -> str | None:
    """What is wrong with the server or the login, in one line; None: nothing."""
    try:
        with engine.connect() as connection:
            if connection.scalar(text("SELECT current_setting('transaction_read_only') = 'on'")):
                connection.invalidate()  # the next connection may lead to another server
                return READ_ONLY
    except DBAPIError as error:
        lines = [line.strip() for line in str(error.orig).splitlines() if line.strip()] or [type(error.orig).__name__]
        # Of several servers, or addresses of one, it is the one that answered.
        return next((line for line in lines if REFUSED.search(line)), lines[0])
    return None
