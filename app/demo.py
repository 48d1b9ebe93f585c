"""The demo tenant that `plaudit up --demo` makes."""

from tenants import registry
from tenants.db import owner_tx, utcnow

DEMO_TENANT = "demo"


def ensure() -> dict[str, str]:
    """Make the tenant if it is not there; what the ready line says of it."""
    with owner_tx() as tx:
        registry.ensure(tx, DEMO_TENANT, name="Demo wiki", now=utcnow())
    return {"tenant": DEMO_TENANT}
