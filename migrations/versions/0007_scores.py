"""Actions, the ledger, user boards and integrity."""

import uuid

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import INET, JSONB

from tenants import rls
from tenants.db import SERVICE_ROLE

revision = "0007"
down_revision = "0006"

TIME = sa.DateTime(timezone=True)
WINDOWS = ("1d", "7d", "30d", "all")

# Removes an erased user's personal fields from the audit, and can do nothing else. Runs as the owner of the table, for
# the transaction's tenant; every name in it has its schema, so that no other table can be put in its place.
BLANK_AUDIT = """
CREATE FUNCTION blank_audit(_user uuid) RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    _tenant text := NULLIF(current_setting('plaudit.tenant', true), '');
    _blanked bigint;
BEGIN
    UPDATE public.action_events SET ip = NULL, agent = NULL, client_info = NULL, metadata = NULL, object = NULL
    WHERE tenant_id = _tenant AND user_id = _user AND EXISTS (
        SELECT FROM public.users u WHERE u.tenant_id = _tenant AND u.id = _user AND u.erased_at IS NOT NULL);
    GET DIAGNOSTICS _blanked = ROW_COUNT;
    RETURN _blanked;
END $$
"""

# A month's partition, made ahead by the owner's maintenance. It is reached through its parent only.
MONTH_OF_ACTIONS = """
CREATE FUNCTION make_month_of_actions(_month date) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    _name text := 'action_events_' || to_char(_month, 'YYYY_MM');
BEGIN
    EXECUTE format('CREATE TABLE IF NOT EXISTS %I PARTITION OF action_events FOR VALUES FROM (%L) TO (%L)',
                   _name, _month::timestamp AT TIME ZONE 'UTC', (_month + interval '1 month') AT TIME ZONE 'UTC');
    IF NOT (SELECT relforcerowsecurity FROM pg_class WHERE oid = _name::regclass) THEN
        EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', _name);
        EXECUTE format('ALTER TABLE %I FORCE ROW LEVEL SECURITY', _name);
        EXECUTE format('CREATE POLICY owner ON %I TO CURRENT_USER USING (true) WITH CHECK (true)', _name);
    END IF;
END $$
"""


def key(table: str, *columns: str) -> sa.PrimaryKeyConstraint:
    return sa.PrimaryKeyConstraint(*columns, name=f"pk_{table}")


def of_tenant(table: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], ondelete="CASCADE", name=f"fk_{table}_tenant_id")


def of_user(table: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(
        ["tenant_id", "user_id"],
        ["users.tenant_id", "users.id"],
        name=f"fk_{table}_tenant_id_user_id",
        ondelete="CASCADE",
    )


def tenant_id() -> sa.Column[str]:
    return sa.Column("tenant_id", sa.Text, nullable=False)


def user_id() -> sa.Column[uuid.UUID]:
    return sa.Column("user_id", sa.Uuid, nullable=False)


def upgrade() -> None:
    users()
    catalog()
    events()
    ledger()
    user_numbers()
    integrity()


def users() -> None:
    op.add_column("users", sa.Column("current_score", sa.BigInteger, nullable=False, server_default="0"))
    op.add_column("users", sa.Column("total_actions", sa.BigInteger, nullable=False, server_default="0"))
    op.add_column("users", sa.Column("score_reached_at", TIME))
    op.add_column("users", sa.Column("erased_at", TIME))
    op.create_check_constraint("score", "users", "current_score >= 0")


def catalog() -> None:
    op.create_table(
        "action_catalog",
        tenant_id(),
        sa.Column("type", sa.Text, nullable=False),
        sa.Column("points", sa.BigInteger, nullable=False),
        sa.Column("daily_cap", sa.Integer),
        sa.Column("cooldown_s", sa.Integer),
        sa.Column("once_per_object", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("requires_token", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("enabled", sa.Boolean, nullable=False, server_default=sa.true()),
        sa.Column("updated_at", TIME, nullable=False),
        key("action_catalog", "tenant_id", "type"),
        of_tenant("action_catalog"),
    )
    op.create_table(
        "consumed_tokens",
        tenant_id(),
        sa.Column("token_id", sa.Text, nullable=False),
        sa.Column("expires_at", TIME, nullable=False),
        key("consumed_tokens", "tenant_id", "token_id"),
        of_tenant("consumed_tokens"),
    )
    op.create_index("ix_consumed_tokens_expires_at", "consumed_tokens", ["expires_at"])
    for statement in (
        *rls.isolate("action_catalog"),
        *rls.isolate("consumed_tokens", service=("SELECT", "INSERT")),
    ):
        op.execute(statement)


def events() -> None:
    op.create_table(
        "action_events",
        tenant_id(),
        sa.Column("received_at", TIME, nullable=False),
        sa.Column("id", sa.Uuid, nullable=False),
        user_id(),
        sa.Column("action_type", sa.Text, nullable=False),
        sa.Column("source", sa.Text, nullable=False),
        sa.Column("payload_hash", sa.LargeBinary, nullable=False),
        sa.Column("verification", sa.Text, nullable=False),
        sa.Column("client_time", TIME),
        sa.Column("points", sa.BigInteger, nullable=False),
        sa.Column("object", sa.Text),
        sa.Column("ip", INET),
        sa.Column("agent", sa.Text),
        sa.Column("client_info", JSONB),
        sa.Column("metadata", JSONB),
        key("action_events", "tenant_id", "received_at", "id"),
        postgresql_partition_by="RANGE (received_at)",
    )
    op.create_index("ix_action_events_user", "action_events", ["tenant_id", "user_id", "received_at"])
    for statement in (
        *rls.isolate("action_events", service=("SELECT", "INSERT")),
        MONTH_OF_ACTIONS,
        "REVOKE EXECUTE ON FUNCTION make_month_of_actions FROM PUBLIC",
        BLANK_AUDIT,
        "REVOKE EXECUTE ON FUNCTION blank_audit FROM PUBLIC",
        f"GRANT EXECUTE ON FUNCTION blank_audit TO {SERVICE_ROLE}",
    ):
        op.execute(statement)


def ledger() -> None:
    op.create_table(
        "score_ledger",
        tenant_id(),
        sa.Column("id", sa.BigInteger, sa.Identity(always=True), nullable=False),
        user_id(),
        sa.Column("source", sa.Text, nullable=False),
        sa.Column("metric", sa.Text, nullable=False),
        sa.Column("action_type", sa.Text),
        sa.Column("delta", sa.BigInteger, nullable=False),
        sa.Column("previous", sa.BigInteger, nullable=False),
        sa.Column("score", sa.BigInteger, nullable=False),
        sa.Column("rank", sa.BigInteger),
        sa.Column("at", TIME, nullable=False),
        sa.Column("event_id", sa.Uuid),
        sa.Column("payload_hash", sa.LargeBinary, nullable=False),
        sa.Column("once_key", sa.Text),
        sa.Column("reverses", sa.BigInteger),
        key("score_ledger", "tenant_id", "id"),
        of_tenant("score_ledger"),
        # Not CASCADE: who may delete a user may not thereby delete entries.
        sa.ForeignKeyConstraint(
            ["tenant_id", "user_id"], ["users.tenant_id", "users.id"], name="fk_score_ledger_tenant_id_user_id"
        ),
        sa.CheckConstraint("previous + delta = score AND score >= 0", name=op.f("ck_score_ledger_adds_up")),
    )
    op.create_index("uq_score_ledger_source", "score_ledger", ["tenant_id", "source"], unique=True)
    op.create_index("uq_score_ledger_once_key", "score_ledger", ["tenant_id", "once_key"], unique=True)
    op.create_index("uq_score_ledger_reverses", "score_ledger", ["tenant_id", "reverses"], unique=True)
    op.create_index("ix_score_ledger_user", "score_ledger", ["tenant_id", "user_id", "id"])
    op.create_index("ix_score_ledger_time", "score_ledger", ["tenant_id", "user_id", "at"])
    op.create_index("ix_score_ledger_action", "score_ledger", ["tenant_id", "user_id", "action_type", "at"])
    for statement in rls.isolate("score_ledger", service=("SELECT", "INSERT")):
        op.execute(statement)


def user_numbers() -> None:
    op.create_table(
        "user_points_hour",
        tenant_id(),
        user_id(),
        sa.Column("metric", sa.Text, nullable=False),
        sa.Column("bucket_hour", TIME, nullable=False),
        sa.Column("points", sa.BigInteger, nullable=False),
        sa.Column("last_at", TIME, nullable=False),
        key("user_points_hour", "tenant_id", "user_id", "metric", "bucket_hour"),
        of_user("user_points_hour"),
    )
    op.execute("ALTER TABLE user_points_hour SET (fillfactor = 70)")
    hour = sa.text("(bucket_hour AT TIME ZONE 'UTC')")
    op.create_index("ix_user_points_hour_hour", "user_points_hour", ["tenant_id", hour, "user_id"])
    op.create_table(
        "user_stats",
        tenant_id(),
        user_id(),
        sa.Column("metric", sa.Text, nullable=False),
        sa.Column("segment", sa.Text),
        *(sa.Column(f"value_{window}", sa.BigInteger, nullable=False) for window in WINDOWS),
        *(sa.Column(f"member_{window}", sa.Text, nullable=False) for window in WINDOWS),
        sa.Column("computed_at", TIME, nullable=False),
        key("user_stats", "tenant_id", "user_id", "metric"),
        of_user("user_stats"),
    )
    op.execute("ALTER TABLE user_stats SET (fillfactor = 70)")
    op.create_index("ix_user_stats_segment", "user_stats", ["tenant_id", "segment"])
    op.create_index("ix_user_stats_all", "user_stats", ["tenant_id", "metric", "value_all"])
    for table in ("user_points_hour", "user_stats"):
        for statement in rls.isolate(table):
            op.execute(statement)


def integrity() -> None:
    op.create_table(
        "integrity_flags",
        tenant_id(),
        sa.Column("id", sa.Uuid, nullable=False),
        user_id(),
        sa.Column("rule", sa.Text, nullable=False),
        sa.Column("details", JSONB, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("resolved_at", TIME),
        sa.Column("resolved_by", sa.Text),
        sa.Column("note", sa.Text),
        key("integrity_flags", "tenant_id", "id"),
        of_user("integrity_flags"),
        sa.CheckConstraint(
            "state IN ('open', 'suspended', 'dismissed', 'reversed')", name=op.f("ck_integrity_flags_state")
        ),
    )
    op.create_index(
        "uq_integrity_flags_open",
        "integrity_flags",
        ["tenant_id", "user_id", "rule"],
        unique=True,
        postgresql_where=sa.text("state IN ('open', 'suspended')"),
    )
    op.create_index("ix_integrity_flags_newest", "integrity_flags", ["tenant_id", "created_at", "id"])
    for statement in rls.isolate("integrity_flags", service=("SELECT", "INSERT", "UPDATE")):
        op.execute(statement)
