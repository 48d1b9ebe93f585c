"""Runs every check, in an order in which one that fails explains those that cannot be run."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from redis.exceptions import RedisError
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from app.doctor import boards, machine, postgres, processes, redis, schema, statements, tables
from app.doctor.findings import Finding, Level, has_problem, warn
from app.doctor.installation import Installation
from app.doctor.statements import Statement
from tenants.redis import RedisUnavailable

Check = Callable[[Installation], Iterable[Finding]]

NOT_PERMITTED = "42501"
OF_MACHINE: tuple[Check, ...] = (
    machine.secret_key,
    machine.secrets_file,
    machine.public_url,
    machine.disk_space,
)
OF_POSTGRES: tuple[Check, ...] = (
    postgres.direct_address,
    postgres.supported_version,
    postgres.durability,
    postgres.settings_for_speed,
    postgres.autovacuum,
    postgres.connections,
    postgres.clock,
    tables.dead_rows,
    tables.open_transactions,
    tables.transaction_age,
)
OF_SCHEMA: tuple[Check, ...] = (
    schema.visible_rows,
    schema.usable_roles,
    schema.indexes,
    schema.partitions,
    postgres.timeline,
)
OF_REDIS: tuple[Check, ...] = (redis.cluster, redis.supported_version, redis.eviction, redis.latency)
OF_PROCESSES: tuple[Check, ...] = (
    processes.living_workers,
    processes.cron,
    processes.waiting_jobs,
    processes.failed_jobs,
)
OF_BOARDS: tuple[Check, ...] = (boards.slid_windows, boards.outbox, boards.intents, boards.snapshots)
NOT_RUNNING = warn(
    "Processes",
    "Plaudit is not running: its local servers were started for this command only",
    why="processes and boards can be examined only while it runs",
    advice="start plaudit up, and run plaudit doctor again beside it",
)


@dataclass
class Report:
    findings: list[Finding] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    statements: list[Statement] = field(default_factory=list)

    @property
    def is_ok(self) -> bool:
        return not has_problem(self.findings)

    def count(self, level: Level) -> int:
        return sum(finding.level is level for finding in self.findings)


def examine(installation: Installation) -> Report:
    report = Report(versions=machine.versions())
    report.findings += run(OF_MACHINE, installation)
    has_schema = _examine_database(installation, report)
    installation = _examine_redis(installation, report)
    if not installation.is_running:
        report.findings.append(NOT_RUNNING)
        return report
    if redis.has_queue(installation):
        report.findings += run(OF_PROCESSES, installation)
    if has_schema:
        report.findings += run([processes.same_settings, *OF_BOARDS], installation)
    if has_schema and redis.has_boards(installation):
        report.findings += run([boards.in_redis], installation)
    return report


def _examine_database(installation: Installation, report: Report) -> bool:
    """Whether it can be used, and has our schema."""
    reached = run([postgres.reachable], installation)
    report.findings += reached
    if has_problem(reached):
        return False
    with installation.reading() as connection:
        report.versions["postgresql"] = postgres.version(connection)
    report.findings += run(OF_POSTGRES, installation)
    report.statements, said = statements.most_expensive(installation)
    report.findings += said
    migrated = run([schema.migrations], installation)
    report.findings += migrated
    if has_problem(migrated):
        return False
    report.findings += run(OF_SCHEMA, installation)
    return True


def _examine_redis(installation: Installation, report: Report) -> Installation:
    """Examine the servers that answer; returns the installation with the names of those that do not."""
    away = redis.unreachable(installation)
    report.findings += away.values()
    installation = replace(installation, unreachable=frozenset(away))
    for _, client in redis.servers(installation):
        kind, number = redis.version(client)
        report.versions[kind] = number
    report.findings += run(OF_REDIS, installation)
    return installation


def run(checks: Iterable[Check], installation: Installation) -> list[Finding]:
    """The findings of these checks. One that cannot be made is a finding itself."""
    findings: list[Finding] = []
    for check in checks:
        try:
            findings += check(installation)
        except (SQLAlchemyError, RedisError, RedisUnavailable, OSError) as error:
            findings.append(_not_examined(check, error))
    return findings


def _not_examined(check: Check, error: Exception) -> Finding:
    module, name = check.__module__.rpartition(".")[2], check.__name__.replace("_", " ")
    original = error.orig if isinstance(error, DBAPIError) else error
    lines = str(original).strip().splitlines() or [type(error).__name__]
    is_refused = getattr(original, "sqlstate", None) == NOT_PERMITTED
    return warn(
        module.title(),
        f"Not examined: {name} ({lines[0].strip()})",
        why="this login may not read it" if is_refused else "the server answered with an error",
        advice="GRANT pg_monitor to the login of DATABASE_URL" if is_refused else "see the server's log",
    )
