"""Which rows of PostgreSQL are on a board."""

import pytest
from sqlalchemy import text

from analytics.boards.board_sql import rows_of, transaction_for
from analytics.boards.names import board_of
from analytics.boards.user_numbers import member_of
from analytics.windows import WINDOWS
from tenants import users
from tenants.db import tenant_tx, utcnow
from tests.analytics.boards.conftest import save_page_numbers
from tests.analytics.conftest import put_page


@pytest.fixture
def names(tenant: str, other_tenant: str) -> dict[str, str]:
    """The ids of pages and users by name: pages in two spaces, public, shared and without views this week."""
    ids = {}
    rows = {
        "private": {"space": "eng"},
        "public": {"space": "eng", "visibility": "public"},
        "elsewhere": {"space": "ops", "visibility": "public"},
        "idle": {"space": "eng", "visibility": "public"},
    }
    for name, page in rows.items():
        page_id = put_page(tenant, name, **page)
        ids[str(page_id)] = name
        is_idle = name == "idle"
        save_page_numbers(tenant, page_id, shared=name == "elsewhere", views_7d=0 if is_idle else 1, views_all=1)
    page_id = put_page(other_tenant, "other", space="eng", visibility="public")
    save_page_numbers(other_tenant, page_id, shared=True, views_7d=1)
    ids[str(page_id)] = "other"
    with tenant_tx(tenant) as tx:
        for name, segment, every in (("ada", "north", []), ("bob", None, []), ("cat", "south", ["south", "north"])):
            user_id = users.ensure_external(tx, name, now=utcnow())
            ids[str(user_id)] = name
            tx.execute(
                text("""
                    INSERT INTO user_stats (tenant_id, user_id, metric, segment, segments, computed_at, value_1d,
                        member_1d, value_7d, member_7d, value_30d, member_30d, value_all, member_all)
                    VALUES (:tenant, :user, 'points', :segment, :segments, now(), 0,
                            '', 5, :member, 5, :member, 5, :member)
                """),
                {
                    "tenant": tenant,
                    "user": user_id,
                    "member": member_of(user_id, utcnow()),
                    "segment": segment,
                    "segments": every,
                },
            )
    return ids


@pytest.mark.parametrize(
    ("scope", "metric", "window", "expected"),
    [
        ("tenant", "views", "7d", {"private", "public", "elsewhere"}),
        ("tenant", "views", "all", {"private", "public", "elsewhere", "idle"}),
        ("tenant", "likes", "7d", set()),
        ("space:eng", "views", "7d", {"private", "public"}),
        ("public", "views", "7d", {"public", "elsewhere"}),
        ("public:eng", "views", "7d", {"public"}),
        ("global", "views", "7d", {"elsewhere", "other"}),
        ("users", "points", "7d", {"ada", "bob", "cat"}),
        ("users:north", "points", "7d", {"ada", "cat"}),
        ("users:south", "points", "7d", {"cat"}),
        ("users", "points", "1d", set()),
    ],
)
def test_a_board_has_the_rows_of_its_scope_with_a_value(
    tenant: str, names: dict[str, str], scope: str, metric: str, window: str, expected: set[str]
) -> None:
    board = board_of(tenant, scope, WINDOWS[window], metric)
    of = rows_of(board)
    with transaction_for(board) as tx:
        statement = text(f"SELECT {of.subject}::text AS subject FROM {of.table} s WHERE {of.where}")
        found = set(tx.scalars(statement, of.parameters))
    assert {names[subject] for subject in found if subject in names} == expected
