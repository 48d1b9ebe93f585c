"""Health checks: liveness and readiness."""

import marshmallow as ma
from flask.typing import ResponseReturnValue
from sqlalchemy import text

from app.api.blueprint import Blueprint, Schema
from app.http.edge import quiet
from app.http.rights import probe
from app.http.services import essentials
from migrations.head import head_revision
from tenants import liveness
from tenants.db import platform_tx
from tenants.redis import boards, queue

# It takes one round trip, in the first moments of a process.
MAX_COMPARE_S = 1.0

blueprint = Blueprint("health", __name__, url_prefix="/health", description="Health checks")


class HealthOut(Schema):
    status = ma.fields.String(metadata={"enum": ["ok", "degraded", "unavailable"]})
    checks = ma.fields.Dict(keys=ma.fields.String(), values=ma.fields.String())


@blueprint.get("/live")
@quiet
@blueprint.response(200, HealthOut)
@probe
def live() -> ResponseReturnValue:
    """The process answers."""
    return {"status": "ok", "checks": {}}


@blueprint.get("/ready")
@quiet
@blueprint.alt_response(503, schema=HealthOut, success=True)
@blueprint.response(200, HealthOut)
@probe
def ready() -> ResponseReturnValue:
    """PostgreSQL answers, accepts writes and is migrated; no process that was started before has other settings.

    These are the secret and the public address. Without Redis the service is degraded, but ready. A process that was
    told to stop is not ready, and still answers for a while (`PLAUDIT_DRAIN_S`).
    """
    if essentials().draining.is_set():
        return {"status": "unavailable", "checks": {"process": "is stopping"}}, 503
    database, migrations = check_database()
    settings = check_settings() if database == "ok" else "unknown"
    checks = {
        "database": database,
        "migrations": migrations,
        "settings": settings,
        "redis": "ok" if boards().is_up() else "unavailable",
        "queue": "ok" if queue().is_up() else "unavailable",
    }
    if not database == migrations == settings == "ok":
        return {"status": "unavailable", "checks": checks}, 503
    is_degraded = checks["redis"] != "ok" or checks["queue"] != "ok"
    return {"status": "degraded" if is_degraded else "ok", "checks": checks}


def check_settings() -> str:
    """Whether this process has compared its settings with those of the others, and which of them differs."""
    if not liveness.compare(within_s=MAX_COMPARE_S):
        return "not compared yet"
    difference = liveness.difference()
    if difference is None:
        return "ok"
    # Anybody may ask: which process that is stands in the log.
    return f"{difference.variable} is not the one of the processes that were started before"


def check_database() -> tuple[str, str]:
    try:
        revision = _revision()
    except Exception as error:  # noqa: BLE001  whatever the error, the database is not ready
        return "read-only" if _says_read_only(error) else "unavailable", "unknown"
    # A newer schema is fine: migrations only expand, so this release works while the next one is rolled out.
    return "ok", "ok" if revision >= head_revision() else f"at {revision}, needs {head_revision()}"


class _ReadOnly(Exception):
    """PostgreSQL accepts no writes: a standby, or a server whose transactions are read-only."""


def _revision() -> str:
    """The schema's revision, from a server that accepts writes."""
    with platform_tx() as tx:
        revision, is_read_only = tx.execute(_STATE).one()
        if is_read_only:
            tx.raw.invalidate()  # the next connection may lead to another server
            raise _ReadOnly
    return str(revision)


_STATE = text("SELECT version_num, current_setting('transaction_read_only') = 'on' FROM alembic_version")


def _says_read_only(error: Exception) -> bool:
    """The driver has no code for an address of several servers of which none accepts writes."""
    return isinstance(error, _ReadOnly) or "session is read-only" in str(error) or "in hot standby" in str(error)
