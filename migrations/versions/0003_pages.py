"""Pages, likes, views: how they are counted, remembered and handed on."""

import sqlalchemy as sa
from alembic import op

from tenants import rls

revision = "0003"
down_revision = "0002"

TIME = sa.DateTime(timezone=True)


def tenant_id() -> sa.Column[str]:
    return sa.Column("tenant_id", sa.Text, nullable=False)


def of_tenant(table: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], ondelete="CASCADE", name=f"fk_{table}_tenant_id")


def of_page(table: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(
        ["tenant_id", "page_id"],
        ["pages.tenant_id", "pages.id"],
        ondelete="CASCADE",
        name=f"fk_{table}_tenant_id_page_id",
    )


def key(table: str, *columns: str) -> sa.PrimaryKeyConstraint:
    return sa.PrimaryKeyConstraint(*columns, name=f"pk_{table}")


def upgrade() -> None:
    op.create_table(
        "pages",
        tenant_id(),
        sa.Column("id", sa.BigInteger, sa.Identity(always=True), nullable=False),
        sa.Column("external_id", sa.Text, nullable=False),
        sa.Column("space_key", sa.Text, nullable=False),
        sa.Column("title", sa.Text, nullable=False),
        sa.Column("url", sa.Text, nullable=False),
        sa.Column("owner_id", sa.Uuid),
        sa.Column("visibility", sa.Text, nullable=False, server_default="private"),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("updated_at", TIME, nullable=False),
        key("pages", "tenant_id", "id"),
        of_tenant("pages"),
        sa.CheckConstraint("visibility IN ('private', 'public')", name=op.f("ck_pages_visibility")),
    )
    op.execute(
        "ALTER TABLE pages ADD CONSTRAINT fk_pages_tenant_id_owner_id FOREIGN KEY (tenant_id, owner_id)"
        " REFERENCES users (tenant_id, id) ON DELETE SET NULL (owner_id)"
    )
    op.create_index("uq_pages_external_id", "pages", ["tenant_id", "external_id"], unique=True)
    op.create_index("ix_pages_space", "pages", ["tenant_id", "space_key", "id"])
    op.create_index("ix_pages_url", "pages", ["tenant_id", "url"])
    op.create_index("ix_pages_owner", "pages", ["tenant_id", "owner_id"])

    # Narrow rows that move with every commit: room on the page keeps the moves off the indexes (HOT).
    op.create_table(
        "page_counters",
        tenant_id(),
        sa.Column("page_id", sa.BigInteger, nullable=False),
        sa.Column("likes", sa.BigInteger, nullable=False, server_default="0"),
        key("page_counters", "tenant_id", "page_id"),
        of_page("page_counters"),
    )
    op.execute("ALTER TABLE page_counters SET (fillfactor = 50)")
    op.create_table(
        "page_likes",
        tenant_id(),
        sa.Column("page_id", sa.BigInteger, nullable=False),
        sa.Column("user_id", sa.Uuid, nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        key("page_likes", "tenant_id", "page_id", "user_id"),
        of_page("page_likes"),
        sa.ForeignKeyConstraint(
            ["tenant_id", "user_id"],
            ["users.tenant_id", "users.id"],
            ondelete="CASCADE",
            name="fk_page_likes_tenant_id_user_id",
        ),
    )
    op.create_index("ix_page_likes_user", "page_likes", ["tenant_id", "user_id"])
    op.create_table(
        "page_views_hour",
        tenant_id(),
        sa.Column("page_id", sa.BigInteger, nullable=False),
        sa.Column("bucket_hour", TIME, nullable=False),
        sa.Column("views", sa.BigInteger, nullable=False),
        key("page_views_hour", "tenant_id", "page_id", "bucket_hour"),
        of_page("page_views_hour"),
    )
    op.execute("ALTER TABLE page_views_hour SET (fillfactor = 70)")

    # Append-only: a writer never waits for the projector, which deletes by id what it has done.
    op.create_table(
        "outbox",
        tenant_id(),
        sa.Column("id", sa.BigInteger, sa.Identity(always=True), nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("member", sa.Text, nullable=False),
        key("outbox", "tenant_id", "id"),
        of_tenant("outbox"),
    )
    # Unique on tenant and id alone: a retry never counts twice, whatever day it comes.
    op.create_table(
        "seen_events",
        tenant_id(),
        sa.Column("event_key", sa.Uuid, nullable=False),
        sa.Column("seen_on", sa.Date, nullable=False),
        key("seen_events", "tenant_id", "event_key"),
        of_tenant("seen_events"),
    )
    op.create_index("ix_seen_events_seen_on", "seen_events", ["seen_on"])
    op.create_table(
        "ingest_rejections_hour",
        tenant_id(),
        sa.Column("bucket_hour", TIME, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("rejected", sa.BigInteger, nullable=False),
        key("ingest_rejections_hour", "tenant_id", "bucket_hour", "reason"),
        of_tenant("ingest_rejections_hour"),
    )
    op.create_table(
        "imports",
        tenant_id(),
        sa.Column("file_hash", sa.Text, nullable=False),
        sa.Column("file_name", sa.Text, nullable=False),
        sa.Column("lines_done", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("accepted", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("duplicates", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("rejected", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("started_at", TIME, nullable=False),
        sa.Column("finished_at", TIME),
        key("imports", "tenant_id", "file_hash"),
        of_tenant("imports"),
    )
    for table in (
        "pages",
        "page_counters",
        "page_likes",
        "page_views_hour",
        "seen_events",
        "ingest_rejections_hour",
        "imports",
    ):
        for statement in rls.isolate(table):
            op.execute(statement)
    for statement in rls.isolate("outbox", service=("SELECT", "INSERT", "DELETE"), platform=("SELECT",)):
        op.execute(statement)
