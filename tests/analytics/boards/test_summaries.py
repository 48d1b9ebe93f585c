"""Summaries: what a row shows, and what it may not show any more."""

import pytest
from sqlalchemy import text

from analytics.boards.board_writes import BoardWrites
from analytics.boards.names import ALL_TENANTS, GLOBAL, Board, board_of
from analytics.boards.redis_store import write
from analytics.boards.summaries import Summary, of_subjects, summary_key
from analytics.windows import Window
from tenants import redis as tenants_redis
from tenants import users
from tenants.db import tenant_tx, utcnow
from tests.analytics.boards.conftest import save_page_numbers
from tests.analytics.conftest import put_page


@pytest.fixture
def page(tenant: str) -> str:
    """A public page that is not shared."""
    page_id = put_page(tenant, "home", visibility="public")
    save_page_numbers(tenant, page_id, views_all=1)
    return str(page_id)


def keep_in_redis(owner: str, page: str, title: str, *, is_public: bool) -> None:
    fields = Summary("home", title, "/home", "eng", owner, is_public).fields()
    write(tenants_redis.boards().redis, BoardWrites(summaries={summary_key(owner, page): fields}), {})


def title(board: Board, page: str, *, trust_redis: bool = True) -> str | None:
    shown = of_subjects(board, [page], trust_redis=trust_redis)
    return str(shown[page]["title"]) if page in shown else None


def board(tenant: str, scope: str) -> Board:
    return board_of(tenant, scope, Window.ALL, None)


def test_a_page_is_shown_from_redis_and_else_from_postgresql(
    tenant: str, page: str, request: pytest.FixtureRequest
) -> None:
    own = board(tenant, "tenant")
    assert title(own, page) == "Page home"
    assert of_subjects(own, ["999999999"]) == of_subjects(own, []) == {}
    keep_in_redis(tenant, page, "Kept", is_public=True)
    assert title(own, page) == "Kept"
    request.getfixturevalue("no_redis")
    assert title(own, page) == "Page home"


def test_redis_and_postgresql_have_the_same_fields(tenant: str, page: str) -> None:
    own = board(tenant, "tenant")
    from_postgresql = of_subjects(own, [page])[page]
    fields = Summary("home", "Page home", "https://wiki.example/home", "eng", tenant, is_public=True).fields()
    assert from_postgresql == fields
    write(tenants_redis.boards().redis, BoardWrites(summaries={summary_key(tenant, page): fields}), {})
    assert of_subjects(own, [page])[page] == fields


def test_of_a_page_that_became_private_a_public_board_shows_nothing(tenant: str, page: str) -> None:
    public, own = board(tenant, "public"), board(tenant, "tenant")
    keep_in_redis(tenant, page, "Kept", is_public=True)
    assert title(public, page) == "Kept"
    put_page(tenant, "home", visibility="private")
    assert title(public, page, trust_redis=False) is None, "the rows of a snapshot may be old"
    keep_in_redis(tenant, page, "Kept", is_public=False)
    assert title(public, page) is None
    assert title(own, page, trust_redis=False) == "Kept", "the tenant's own board shows it"


def test_the_global_boards_show_only_pages_that_are_shared(tenant: str, page: str) -> None:
    everywhere = Board(ALL_TENANTS, GLOBAL, Window.ALL, board(tenant, "tenant").metric)
    assert title(everywhere, page) is None
    save_page_numbers(tenant, int(page), shared=True, views_all=1)
    assert title(everywhere, page) == "Page home"


def test_an_erased_user_is_not_shown(tenant: str, other_tenant: str) -> None:
    with tenant_tx(tenant) as tx:
        kept, erased = (str(users.ensure_external(tx, name, now=utcnow())) for name in ("ada", "bob"))
        tx.execute(text("UPDATE users SET erased_at = now() WHERE id = :user"), {"user": erased})
    assert of_subjects(board(tenant, "users"), [kept, erased]) == {
        kept: {"id": kept, "username": None, "external_id": "ada", "display_name": None, "avatar_url": None}
    }
    assert of_subjects(board(other_tenant, "users"), [kept]) == {}
