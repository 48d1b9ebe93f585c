"""The outbox is read by kind, in the order of ids: its primary key is (tenant_id, kind, id).

Each step of a projection reads the oldest rows of each kind. By (tenant_id, id) it read past all rows of other kinds:
with a backlog of pages, every step read the whole backlog to find that no row of the kind `sharing` is there. The new
key also replaces the partial indexes of the kinds `user` and `views`.

The table is locked while its index is built: half a second for a million waiting rows.
"""

from alembic import op

from migrations.functions import change_function

revision = "0033"
down_revision = "0032"


def upgrade() -> None:
    op.drop_constraint("pk_outbox", "outbox", type_="primary")
    op.create_primary_key("pk_outbox", "outbox", ["tenant_id", "kind", "id"])
    for name in ("ix_outbox_users", "ix_outbox_views"):
        op.drop_index(name, "outbox")
    change_function("count_waiting_views", {"AND o.id = ANY": "AND o.kind = 'views' AND o.id = ANY"})
