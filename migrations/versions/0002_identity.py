"""Who may do what: clients, keys, users, sessions, settings, idempotency keys, signing keys."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql as pg

from tenants import rls
from tenants.db import PLATFORM_ROLE

revision = "0002"
down_revision = "0001"

TIME = sa.DateTime(timezone=True)


def tenant_id() -> sa.Column[str]:
    return sa.Column("tenant_id", sa.Text, nullable=False)


def of_tenant(table: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], ondelete="CASCADE", name=f"fk_{table}_tenant_id")


def of_user(table: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(
        ["tenant_id", "user_id"],
        ["users.tenant_id", "users.id"],
        ondelete="CASCADE",
        name=f"fk_{table}_tenant_id_user_id",
    )


def key(table: str, *columns: str) -> sa.PrimaryKeyConstraint:
    return sa.PrimaryKeyConstraint(*columns, name=f"pk_{table}")


def upgrade() -> None:
    op.create_table(
        "oauth_clients",
        tenant_id(),
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("scopes", pg.ARRAY(sa.TEXT), nullable=False),
        sa.Column("secret_hash", sa.Text, nullable=False),
        sa.Column("old_secret_hash", sa.Text),
        sa.Column("old_secret_expires_at", TIME),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("last_used_at", TIME),
        sa.Column("revoked_at", TIME),
        key("oauth_clients", "tenant_id", "id"),
        of_tenant("oauth_clients"),
    )
    op.create_table(
        "publishable_keys",
        tenant_id(),
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("origins", pg.ARRAY(sa.TEXT), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("revoked_at", TIME),
        key("publishable_keys", "tenant_id", "id"),
        of_tenant("publishable_keys"),
    )
    op.create_table(
        "users",
        tenant_id(),
        sa.Column("id", sa.Uuid, nullable=False),
        sa.Column("external_id", sa.Text),
        sa.Column("username", sa.Text),
        sa.Column("email", sa.Text),
        sa.Column("password_hash", sa.Text),
        sa.Column("role", sa.Text, nullable=False, server_default="member"),
        sa.Column("suspended_at", TIME),
        sa.Column("segment", sa.Text),
        sa.Column("avatar_url", sa.Text),
        sa.Column("bio", sa.Text),
        sa.Column("wallet", sa.Text),
        sa.Column("email_verified", sa.Boolean, nullable=False, server_default=sa.text("false")),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("updated_at", TIME, nullable=False),
        key("users", "tenant_id", "id"),
        of_tenant("users"),
        sa.CheckConstraint("role IN ('member', 'admin')", name=op.f("ck_users_role")),
    )
    op.create_index("uq_users_external_id", "users", ["tenant_id", "external_id"], unique=True)
    op.create_index("uq_users_username", "users", ["tenant_id", sa.text("lower(username)")], unique=True)
    op.create_index("uq_users_email", "users", ["tenant_id", sa.text("lower(email)")], unique=True)
    op.create_index("ix_users_newest", "users", ["tenant_id", "created_at", "id"])
    op.create_table(
        "sessions",
        tenant_id(),
        sa.Column("id", sa.Uuid, nullable=False),
        sa.Column("user_id", sa.Uuid, nullable=False),
        sa.Column("refresh_hash", sa.Text, nullable=False),
        sa.Column("ip", pg.INET),
        sa.Column("user_agent", sa.Text),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("last_used_at", TIME, nullable=False),
        sa.Column("expires_at", TIME, nullable=False),
        sa.Column("revoked_at", TIME),
        key("sessions", "tenant_id", "id"),
        of_user("sessions"),
    )
    op.create_index("ix_sessions_user", "sessions", ["tenant_id", "user_id"])
    op.create_index("ix_sessions_expires_at", "sessions", ["expires_at"])
    op.create_table(
        "password_resets",
        tenant_id(),
        sa.Column("token_hash", sa.Text, nullable=False),
        sa.Column("user_id", sa.Uuid, nullable=False),
        sa.Column("expires_at", TIME, nullable=False),
        sa.Column("used_at", TIME),
        key("password_resets", "tenant_id", "token_hash"),
        of_user("password_resets"),
    )
    op.create_table(
        "revoked_tokens",
        tenant_id(),
        sa.Column("jti", sa.Text, nullable=False),
        sa.Column("expires_at", TIME, nullable=False),
        key("revoked_tokens", "tenant_id", "jti"),
        of_tenant("revoked_tokens"),
    )
    op.create_table(
        "tenant_settings",
        tenant_id(),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("overrides", pg.JSONB, nullable=False),
        sa.Column("updated_at", TIME, nullable=False),
        key("tenant_settings", "tenant_id"),
        of_tenant("tenant_settings"),
    )
    op.create_table(
        "idempotency_keys",
        tenant_id(),
        sa.Column("request", sa.Text, nullable=False),
        sa.Column("body_hash", sa.Text, nullable=False),
        sa.Column("status", sa.Integer, nullable=False),
        sa.Column("headers", pg.JSONB, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        key("idempotency_keys", "tenant_id", "request"),
        of_tenant("idempotency_keys"),
    )
    op.create_index("ix_idempotency_keys_created_at", "idempotency_keys", ["created_at"])
    for table in (
        "oauth_clients",
        "publishable_keys",
        "users",
        "sessions",
        "password_resets",
        "revoked_tokens",
        "tenant_settings",
        "idempotency_keys",
    ):
        for statement in rls.isolate(table):
            op.execute(statement)

    op.create_table(
        "signing_keys",
        sa.Column("kid", sa.Text, nullable=False),
        sa.Column("private_key", sa.LargeBinary, nullable=False),
        sa.Column("public_jwk", pg.JSONB, nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("activates_at", TIME, nullable=False),
        sa.Column("retires_at", TIME),
        key("signing_keys", "kid"),
    )
    op.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON signing_keys TO {PLATFORM_ROLE}")
