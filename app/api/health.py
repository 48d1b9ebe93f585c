"""Health checks: liveness and readiness."""

import marshmallow as ma
from flask.typing import ResponseReturnValue
from sqlalchemy import text

from app.api.blueprint import Blueprint, Schema
from app.http.edge import quiet
from app.http.rights import public
from migrations.head import head_revision
from tenants.db import platform_tx
from tenants.redis import boards, queue

blueprint = Blueprint("health", __name__, url_prefix="/health", description="Health checks")


class HealthOut(Schema):
    status = ma.fields.String(metadata={"enum": ["ok", "degraded", "unavailable"]})
    checks = ma.fields.Dict(keys=ma.fields.String(), values=ma.fields.String())


@blueprint.get("/live")
@quiet
@blueprint.response(200, HealthOut)
@public
def live() -> ResponseReturnValue:
    """The process answers."""
    return {"status": "ok", "checks": {}}


@blueprint.get("/ready")
@quiet
@blueprint.alt_response(503, schema=HealthOut, success=True)
@blueprint.response(200, HealthOut)
@public
def ready() -> ResponseReturnValue:
    """PostgreSQL answers and is migrated. Without Redis the service is degraded, but ready."""
    database, migrations = check_database()
    checks = {
        "database": database,
        "migrations": migrations,
        "redis": "ok" if boards().is_up() else "unavailable",
        "queue": "ok" if queue().is_up() else "unavailable",
    }
    if database != "ok" or migrations != "ok":
        return {"status": "unavailable", "checks": checks}, 503
    is_degraded = checks["redis"] != "ok" or checks["queue"] != "ok"
    return {"status": "degraded" if is_degraded else "ok", "checks": checks}


def check_database() -> tuple[str, str]:
    try:
        with platform_tx() as tx:
            revision = tx.scalar(text("SELECT version_num FROM alembic_version"))
    except Exception:  # noqa: BLE001  whatever the error, the database is not ready
        return "unavailable", "unknown"
    # A newer schema is fine: migrations only expand, so this release works while the next one is rolled out.
    return "ok", "ok" if str(revision or "") >= head_revision() else f"at {revision}, needs {head_revision()}"
