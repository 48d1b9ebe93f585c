"""PostgreSQL itself: version, durability, the settings that decide its speed, connections, clock."""

import contextlib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from redis.exceptions import RedisError
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from app.doctor import processes
from app.doctor.findings import Finding, duration, ok, problem, warn
from app.doctor.installation import Installation, read_only
from app.run.direct_address import difference, identity
from app.settings import Settings
from tenants.db import utcnow
from tenants.engines import is_pooled, make_engine

ABOUT = "PostgreSQL"
MIN_VERSION = 15
MB, GB = 2**20, 2**30
MAX_CLOCK_DIFFERENCE_S = 2.0
BAD_CLOCK_DIFFERENCE_S = 60.0
# Connections of a process that answers requests, beside its pool: it reads and waits for revocations by them.
FOR_LOOP_COMMITS = 2
FOR_REVOCATIONS = 2
FOR_LEADING = 1  # of cron
# Of the connections that are allowed, in use now.
MAX_SHARE_IN_USE = 0.8
USUAL_WORKERS = 2
DURABLE = ("fsync", "full_page_writes", "synchronous_commit")
CHANGE_SETTING = "ALTER SYSTEM SET {name} = '{value}' and reload, or change postgresql.conf"
RESTART_NEEDED = frozenset({"shared_buffers"})
_UNITS = {"B": 1, "kB": 1024, "MB": MB, "GB": GB, "TB": 1024 * GB, "ms": 0.001, "s": 1, "min": 60, "h": 3600}
_WITH_UNIT = re.compile(r"([0-9]*)([A-Za-z]+)")


class Values(dict[str, str]):
    """Settings by name, as the server shows them in its base units: numbers are bytes or seconds."""

    def number(self, name: str) -> float:
        return float(self[name])


@dataclass(frozen=True)
class Rule:
    """A setting for speed: when it is fine, and what is better."""

    name: str
    is_fine: Callable[[Values], bool]
    why: str
    better: str


RULES = (
    Rule(
        "shared_buffers",
        lambda v: v.number("shared_buffers") > 128 * MB or v.number("database_size") < v.number("shared_buffers"),
        "the database is larger than the server's own cache, which has the default size",
        "a quarter of the server's memory, e.g. 4GB of 16GB",
    ),
    Rule(
        "effective_cache_size",
        lambda v: v.number("effective_cache_size") >= 2 * v.number("shared_buffers"),
        "the planner believes that hardly anything is cached besides shared_buffers, and avoids indexes",
        "three quarters of the server's memory",
    ),
    Rule(
        "max_wal_size",
        lambda v: v.number("max_wal_size") >= 2 * GB,
        "under load checkpoints come by volume; after each one every page is logged whole again",
        "4GB or more, if the disk has room",
    ),
    Rule(
        "checkpoint_timeout",
        lambda v: v.number("checkpoint_timeout") >= 600,
        "after each checkpoint every page that changes is logged whole: frequent ones multiply the log",
        "15min",
    ),
    Rule(
        "random_page_cost",
        lambda v: v.number("random_page_cost") <= 2,
        "the planner reckons with a spinning disk, and prefers whole tables to indexes",
        "1.1, unless it is one",
    ),
    Rule(
        "work_mem",
        lambda v: 4 * MB <= v.number("work_mem") <= 256 * MB,
        "each sort of each connection may use it: too little goes to disk, too much may exhaust the memory",
        "4MB to 64MB",
    ),
    Rule(
        "jit",
        lambda v: v["jit"] == "off",
        "compiling takes longer than our statements, where the planner overestimates one",
        "off",
    ),
)


def reachable(installation: Installation) -> Iterable[Finding]:
    try:
        with installation.reading() as connection:
            connection.execute(text("SELECT 1"))
    except DBAPIError as error:
        lines = str(error.orig).strip().splitlines() or ["no message"]
        yield problem(
            ABOUT,
            f"It cannot be reached ({lines[0].strip()})",
            why="without it nothing works",
            advice="start it, or check DATABASE_URL",
        )


def direct_address(installation: Installation) -> Iterable[Finding]:
    """Whether backups, restores and migrations, which go another way, are of the same database."""
    settings = installation.settings
    if settings.direct_database_url is None or settings.database_url is None:
        return
    named = identity(settings.database_url)
    try:
        direct = identity(settings.direct_database_url)
    except DBAPIError as error:
        lines = str(error.orig).strip().splitlines() or ["no message"]
        yield problem(
            ABOUT,
            f"It cannot be reached by PLAUDIT_DIRECT_DATABASE_URL ({lines[0].strip()})",
            why="plaudit backup, restore and migrate use that address",
            advice="correct the address, or unset it if there is no pooler",
        )
        return
    if said := difference(named, direct):
        yield problem(
            ABOUT,
            said,
            why="a backup would be of the wrong data, and a restore or a migration would change it",
            advice="set it to the address of the server itself, with the database that the pooler leads to",
        )
    else:
        yield ok(ABOUT, "PLAUDIT_DIRECT_DATABASE_URL leads to the same database")


def version(connection: Connection) -> str:
    return str(connection.scalar(text("SHOW server_version"))).split()[0]


def supported_version(installation: Installation) -> Iterable[Finding]:
    with installation.reading() as connection:
        name, number = version(connection), int(connection.scalar(text("SHOW server_version_num")) or 0)
    if number // 10_000 < MIN_VERSION:
        yield problem(
            ABOUT,
            f"It is version {name}",
            why=f"Plaudit needs {MIN_VERSION} or newer",
            advice="plaudit backup, install a newer server, plaudit restore",
        )
    else:
        yield ok(ABOUT, f"Version {name}")


def durability(installation: Installation) -> Iterable[Finding]:
    """As each of our logins sees it: a setting can be changed for a role or a database."""
    settings = installation.settings
    urls = {"DATABASE_URL": settings.database_url, "PLAUDIT_SERVICE_DATABASE_URL": settings.service_database_url}
    unsafe: dict[str, list[str]] = {}
    for variable, url in urls.items():
        if url is None:
            continue
        engine = make_engine(url, pool_size=1)
        try:
            with read_only(engine) as connection:
                values = read(connection, DURABLE)
        finally:
            engine.dispose()
        for name in DURABLE:
            if values[name] == "off":
                unsafe.setdefault(name, []).append(variable)
    for name, variables in unsafe.items():
        yield problem(
            ABOUT,
            f"{name} is off for the login of {' and '.join(variables)}",
            why="a crash of the server loses or damages what was acknowledged",
            advice=f"{CHANGE_SETTING.format(name=name, value='on')}; see ALTER ROLE and ALTER DATABASE too",
        )
    if not unsafe:
        yield ok(ABOUT, f"Commits are durable ({', '.join(DURABLE)})")


def settings_for_speed(installation: Installation) -> Iterable[Finding]:
    names = ["shared_buffers", *(rule.name for rule in RULES)]
    with installation.reading() as connection:
        values = read(connection, names)
        values["database_size"] = str(connection.scalar(text("SELECT pg_database_size(current_database())")))
        shown = {name: str(connection.scalar(text("SELECT current_setting(:n)"), {"n": name})) for name in names}
    fine = []
    for rule in RULES:
        if rule.is_fine(values):
            fine.append(f"{rule.name} {shown[rule.name]}")
            continue
        how = "postgresql.conf and a restart" if rule.name in RESTART_NEEDED else "ALTER SYSTEM or postgresql.conf"
        yield warn(ABOUT, f"{rule.name} is {shown[rule.name]}", why=rule.why, advice=f"set it to {rule.better} ({how})")
    if fine:
        yield ok(ABOUT, f"Settings for speed: {', '.join(fine)}")


def autovacuum(installation: Installation) -> Iterable[Finding]:
    with installation.reading() as connection:
        values = read(connection, ("autovacuum", "track_counts"))
    off = [name for name, value in values.items() if value == "off"]
    for name in off:
        yield problem(
            ABOUT,
            f"{name} is off",
            why="dead rows are never removed: tables and indexes grow without end and get slow",
            advice=CHANGE_SETTING.format(name=name, value="on"),
        )
    if not off:
        yield ok(ABOUT, "Autovacuum is on")


def connections(installation: Installation) -> Iterable[Finding]:
    with installation.reading() as connection:
        names = ("max_connections", "superuser_reserved_connections", "reserved_connections")
        values = read(connection, names)
        behind_pooler = is_pooled(connection)
        in_use = int(
            connection.scalar(text("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'")) or 0
        )
    allowed = int(values["max_connections"]) - sum(int(values.get(name, 0)) for name in names[1:])
    workers = USUAL_WORKERS
    with contextlib.suppress(RedisError, OSError):  # said elsewhere
        workers = len(processes.workers(installation)) or USUAL_WORKERS
    needed = connections_needed(installation.settings, workers=workers)
    of_whom = " from the pooler" if behind_pooler else ""
    what = f"{allowed} connections are allowed; the processes here need up to {needed}{of_whom}, {in_use} are open now"
    if (needed > allowed and not behind_pooler) or in_use > MAX_SHARE_IN_USE * allowed:
        yield warn(
            ABOUT,
            what,
            why="a request that gets no connection is refused with 503 (the formula: docs/performance.md)",
            advice="raise max_connections, put PgBouncer in between, or lower PLAUDIT_WEB_PROCESSES or _DATABASE_POOL",
        )
    else:
        yield ok(ABOUT, what)


def connections_needed(settings: Settings, *, workers: int) -> int:
    """At most, for `web`, one `live`, the workers and one `cron`: the formula of docs/performance.md."""
    for_requests = settings.request_connections + FOR_REVOCATIONS
    of_requests, of_jobs = settings.web_processes + 1, workers + 1
    with_owner = of_jobs if settings.service_database_url else of_jobs + of_requests
    for_jobs = settings.job_connections * of_jobs + FOR_LEADING
    return of_requests * for_requests + FOR_LOOP_COMMITS * settings.web_processes + for_jobs + 2 * with_owner


def timeline(installation: Installation) -> Iterable[Finding]:
    """Needs the schema."""
    with installation.reading() as connection:
        is_standby, server = connection.execute(text("SELECT pg_is_in_recovery(), current_server()")).one()
    if server is None and not is_standby:
        yield warn(
            ABOUT,
            "It does not say which server it is: a failover with loss is not noticed",
            why="boards in Redis then go on showing what was lost",
            advice="GRANT EXECUTE ON FUNCTION pg_control_system() TO PUBLIC, or plaudit rebuild after each failover",
        )


def clock(installation: Installation) -> Iterable[Finding]:
    with installation.reading() as connection:
        before = utcnow()
        theirs = connection.execute(text("SELECT clock_timestamp()")).scalar_one()
        ours = before + (utcnow() - before) / 2
        zone = connection.scalar(text("SHOW timezone"))
    differs_s = abs((theirs - ours).total_seconds())
    if differs_s > MAX_CLOCK_DIFFERENCE_S:
        finding = problem if differs_s > BAD_CLOCK_DIFFERENCE_S else warn
        yield finding(
            ABOUT,
            f"Its clock differs from this machine's by {duration(differs_s)}",
            why="events are counted in hours and tokens expire by these clocks",
            advice="synchronise both machines, by NTP",
        )
    else:
        yield ok(ABOUT, f"Its clock agrees with this machine's; it shows times in {zone}, and Plaudit counts in UTC")


def read(connection: Connection, names: Iterable[str]) -> Values:
    """These settings, of those that the server has."""
    rows = connection.execute(
        text("SELECT name, setting, unit FROM pg_settings WHERE name = ANY(:names)"), {"names": list(names)}
    )
    return Values({row.name: _in_base_units(row.setting, row.unit) for row in rows})


def _in_base_units(setting: str, unit: str | None) -> str:
    """`16384` in units of `8kB` is 134217728 bytes."""
    match = _WITH_UNIT.fullmatch(unit or "")
    if match is None:
        return setting
    return str(float(setting) * int(match[1] or 1) * _UNITS[match[2]])
