"""The jobs: a few lines each, JSON arguments, safe to run twice or at once."""

import structlog

from app.settings import Settings
from tenants import registry, retention, signing
from tenants.db import owner_tx, utcnow

log = structlog.get_logger()


def purge_deleted_tenants() -> None:
    """Remove the rows of tenants that were deleted."""
    with owner_tx() as tx:
        marked = registry.deleted(tx)
    for tenant_id in marked:
        with owner_tx() as tx:
            registry.purge(tx, tenant_id)
        log.info("tenant purged", action="audit.tenant.purged", tenantId=tenant_id)


def purge_expired() -> None:
    """Remove sessions, reset tokens, revoked tokens and idempotent answers that nobody can use any more."""
    purged = retention.purge_expired(now=utcnow())
    if any(purged.values()):
        log.info("expired rows purged", action="retention.purged", data=purged)


def rotate_signing_key() -> None:
    """Publish a new signing key when the newest is a month old."""
    settings = Settings.from_env()
    if settings.secret_key is None:
        return
    signer = signing.Signer(issuer=settings.public_url, secret_key=settings.secret_key)
    kid = signing.rotate_if_due(signer, now=utcnow())
    if kid is not None:
        log.info("signing key rotated", action="audit.signing_key.rotated", data={"kid": kid})
