"""Who registers alone sees public pages only, and sign-up is closed unless a tenant opens it."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    op.add_column("users", sa.Column("sees_private", sa.Boolean, nullable=False, server_default=sa.text("true")))
    op.create_index("ix_pages_public", "pages", ["tenant_id", "id"], postgresql_where=sa.text("visibility = 'public'"))
    # The default of `signup_open` was true, and is false from now on: where a tenant stored nothing, it meant true.
    op.execute("""
        INSERT INTO tenant_settings (tenant_id, version, overrides, updated_at)
        SELECT id, 1, '{"signup_open": true}', now() FROM tenants
        ON CONFLICT (tenant_id) DO UPDATE SET
            version = tenant_settings.version + 1, overrides = tenant_settings.overrides || EXCLUDED.overrides,
            updated_at = EXCLUDED.updated_at
        WHERE NOT jsonb_exists(tenant_settings.overrides, 'signup_open')
    """)
