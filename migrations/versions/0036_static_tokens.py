"""Static tokens, for tools that can only send a fixed header. A revoked one writes no events, as a client's tokens."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql as pg

from migrations.functions import change_function
from tenants import rls

revision = "0036"
down_revision = "0035"

TIME = sa.DateTime(timezone=True)

# In `write_page_events` a static token of the tenant is shown as a client, `static:<id>`.
_CLIENT = """                      WHERE c.tenant_id = _tenant AND c.id = t.client_id AND c.revoked_at IS NULL)
"""
_OR_STATIC = """          AND NOT EXISTS (SELECT FROM static_tokens s
                          WHERE s.tenant_id = _tenant AND s.id = substr(t.client_id, 8)
                            AND starts_with(t.client_id, 'static:') AND s.user_id IS NULL
                            AND s.revoked_at IS NULL AND (s.expires_at IS NULL OR s.expires_at > _now))
"""


def upgrade() -> None:
    op.create_table(
        "static_tokens",
        sa.Column("tenant_id", sa.Text, nullable=False),
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("token_hash", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("scopes", pg.ARRAY(sa.TEXT), nullable=False),
        sa.Column("user_id", sa.Uuid),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("expires_at", TIME),
        sa.Column("last_used_at", TIME),
        sa.Column("revoked_at", TIME),
        sa.PrimaryKeyConstraint("tenant_id", "id", name="pk_static_tokens"),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], ondelete="CASCADE", name="fk_static_tokens_tenant_id"),
        sa.ForeignKeyConstraint(
            ["tenant_id", "user_id"],
            ["users.tenant_id", "users.id"],
            ondelete="CASCADE",
            name="fk_static_tokens_tenant_id_user_id",
        ),
    )
    op.create_index("ix_static_tokens_user", "static_tokens", ["tenant_id", "user_id"])
    for statement in rls.isolate("static_tokens"):
        op.execute(statement)
    change_function("write_page_events", {_CLIENT: _CLIENT + _OR_STATIC})
