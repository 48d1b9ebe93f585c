"""The jobs: a few lines each, JSON arguments, safe to run twice or at once."""

import structlog

from tenants import registry
from tenants.db import owner_tx

log = structlog.get_logger()


def purge_deleted_tenants() -> None:
    """Remove the rows of tenants that were deleted."""
    with owner_tx() as tx:
        purged = registry.purge_deleted(tx)
    for tenant_id in purged:
        log.info("tenant purged", action="tenant.purged", tenantId=tenant_id)
