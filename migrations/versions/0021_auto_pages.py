"""Pages that make themselves, and the addresses of refused views."""

import sqlalchemy as sa
from alembic import op

from tenants import rls
from tenants.db import SERVICE_ROLE

revision = "0021"
down_revision = "0020"

TIME = sa.DateTime(timezone=True)

# How often each address was refused. Last in a transaction, and in one order. Of more than 1,000 addresses of a tenant
# the least counted leave, never those that this commit has added; rows that another commit has locked are skipped, so
# that no two wait for each other, and the next new address makes up for it. Only new addresses cost this.
COUNT_UNKNOWN_ADDRESSES = """
CREATE FUNCTION count_unknown_addresses(
    _tenant text,
    _addresses text[],
    _page_addresses text[],  -- for each what its page would have as address
    _titles text[],          -- and the document's title, or NULL
    _now timestamptz
) RETURNS int LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    _new text[];
    _too_many bigint;
BEGIN
    WITH counted AS (
        INSERT INTO unknown_addresses AS u (tenant_id, address, page_address, title, refused, first_seen, last_seen)
        SELECT t.id, w.address, max(w.page_address), max(w.title), count(*), _now, _now
        FROM tenants t CROSS JOIN unnest(_addresses, _page_addresses, _titles) AS w(address, page_address, title)
        WHERE t.id = _tenant GROUP BY t.id, w.address ORDER BY w.address
        ON CONFLICT (tenant_id, address) DO UPDATE SET
            refused = u.refused + EXCLUDED.refused,
            title = COALESCE(EXCLUDED.title, u.title),
            last_seen = GREATEST(u.last_seen, EXCLUDED.last_seen)
        RETURNING u.address, xmax = 0 AS is_new
    )
    SELECT array_agg(c.address) FILTER (WHERE c.is_new) INTO _new FROM counted c;
    IF _new IS NULL THEN
        RETURN 0;
    END IF;
    SELECT count(*) - 1000 INTO _too_many FROM unknown_addresses u WHERE u.tenant_id = _tenant;
    IF _too_many > 0 THEN
        WITH least AS MATERIALIZED (
            SELECT u.address FROM unknown_addresses u WHERE u.tenant_id = _tenant
            ORDER BY u.address = ANY(_new), u.refused, u.last_seen LIMIT _too_many FOR UPDATE SKIP LOCKED
        )
        DELETE FROM unknown_addresses u USING least WHERE u.tenant_id = _tenant AND u.address = least.address;
    END IF;
    RETURN cardinality(_new);
END $$
"""


def upgrade() -> None:
    op.add_column("publishable_keys", sa.Column("auto_pages", sa.Boolean, nullable=False, server_default=sa.false()))
    op.create_table(
        "auto_pages_day",
        sa.Column("tenant_id", sa.Text, nullable=False),
        sa.Column("day", sa.Date, nullable=False),
        sa.Column("made", sa.Integer, nullable=False),
        *keys("auto_pages_day", "day"),
    )
    op.create_table(
        "unknown_addresses",
        sa.Column("tenant_id", sa.Text, nullable=False),
        sa.Column("address", sa.Text, nullable=False),
        sa.Column("page_address", sa.Text, nullable=False),
        sa.Column("title", sa.Text),
        sa.Column("refused", sa.BigInteger, nullable=False),
        sa.Column("first_seen", TIME, nullable=False),
        sa.Column("last_seen", TIME, nullable=False),
        *keys("unknown_addresses", "address"),
    )
    for table in ("auto_pages_day", "unknown_addresses"):
        for statement in rls.isolate(table):
            op.execute(statement)
    op.execute(COUNT_UNKNOWN_ADDRESSES)
    op.execute("REVOKE EXECUTE ON FUNCTION count_unknown_addresses FROM PUBLIC")
    op.execute(f"GRANT EXECUTE ON FUNCTION count_unknown_addresses TO {SERVICE_ROLE}")


def keys(table: str, column: str) -> tuple[sa.Constraint, sa.Constraint]:
    of_tenant = f"fk_{table}_tenant_id"
    return (
        sa.PrimaryKeyConstraint("tenant_id", column, name=f"pk_{table}"),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], ondelete="CASCADE", name=of_tenant),
    )
