"""Boards over HTTP: which a reader may read, what of a row they see, and whom a limit counts together."""

from typing import Any

import pytest
from flask import Flask, g

from analytics.boards.names import Board, board_of
from analytics.boards.reading import ShownRow
from analytics.windows import Window
from app.http.auth import Actor, Reader
from app.http.boards import PublicBoardsOnly, board_for, limit_reader, stranger, subject_as_json, user_fields
from tenants import settings as tenant_settings
from tenants.db import tenant_tx, utcnow
from tenants.throttle import TooMany


def own(tenant: str) -> Reader:
    return Reader(tenant, public_only=False, is_anonymous=False)


def self_registered(tenant: str) -> Reader:
    return Reader(tenant, public_only=True, is_anonymous=False)


def may_read(reader: Reader, scope: str | None) -> bool:
    try:
        board_for(reader, {"scope": scope, "window": Window.WEEK})
    except PublicBoardsOnly:
        return False
    return True


@pytest.mark.parametrize(
    ("scope", "allowed"),
    [
        ("tenant", (True, False, False)),
        ("space:eng", (True, False, False)),
        ("public", (True, True, True)),
        ("public:eng", (True, True, True)),
        ("global", (True, True, True)),
        ("users", (True, True, False)),
        ("users:north", (True, True, False)),
        (None, (True, True, True)),
    ],
)
def test_who_may_read_which_board(tenant: str, scope: str | None, allowed: tuple[bool, bool, bool]) -> None:
    readers = (own(tenant), self_registered(tenant), Reader.anonymous(tenant))
    assert tuple(may_read(reader, scope) for reader in readers) == allowed


def test_anybody_with_a_key_reads_a_scoreboard_that_is_public(tenant: str) -> None:
    with tenant_tx(tenant) as tx:
        tenant_settings.change(tx, {"public_scoreboard": True}, now=utcnow())
    assert may_read(Reader.anonymous(tenant), "users")
    assert not may_read(Reader.anonymous(tenant), "tenant")


def test_without_a_scope_it_is_the_widest_that_the_reader_may_read(tenant: str) -> None:
    for reader, scope in ((own(tenant), "tenant"), (self_registered(tenant), "public")):
        assert board_for(reader, {"window": Window.WEEK}).scope == scope


PAGE = {"external_id": "home", "title": "Home", "url": "/home", "space": "eng", "tenant": "Wiki", "public": True}
USER = {
    "id": "u",
    "username": "ada",
    "external_id": "ada@example.org",
    "bio": "…",
    "display_name": "Ada",
    "avatar_url": "https://pictures.example/ada.png",
}


def row(subject: str, shown: dict[str, Any] | None) -> ShownRow:
    return ShownRow(rank=1, value=5, subject=subject, shown=shown, rank_change=None, is_new=True)


def board(scope: str) -> Board:
    return board_of("wiki", scope, Window.WEEK, None)


def test_a_row_shows_of_its_page_or_user_what_its_reader_may_see(tenant: str) -> None:
    page = {"id": 7, "external_id": "home", "title": "Home", "url": "/home", "space": "eng"}
    assert subject_as_json(board("tenant"), row("7", PAGE), ()) == {"page": page}
    assert subject_as_json(board("global"), row("7", PAGE), ()) == {"page": {**page, "tenant": "Wiki"}}
    assert subject_as_json(board("tenant"), row("7", None), ()) == {"page": None}

    def seen_by(reader: Reader) -> Any:
        return subject_as_json(board("users"), row("u", USER), user_fields(board("users"), reader))["user"]

    user = {"id": "u", "username": "ada"}
    names = {"display_name": "Ada", "avatar_url": "https://pictures.example/ada.png"}
    known = {**user, **names, "external_id": "ada@example.org"}
    strangers = (self_registered(tenant), Reader.anonymous(tenant))
    assert [seen_by(reader) for reader in (own(tenant), *strangers)] == [known, user, user]
    with tenant_tx(tenant) as tx:
        tenant_settings.change(tx, {"public_names": True}, now=utcnow())
    assert [seen_by(reader) for reader in (own(tenant), *strangers)] == [known, {**user, **names}, {**user, **names}]


def test_a_limit_counts_a_tenants_own_callers_together_and_each_stranger_separately(app: Flask, tenant: str) -> None:
    def calls(reader: Reader, *, id_: str = "", address: str = "") -> int:
        """How many of two calls are allowed."""
        with app.test_request_context(environ_base={"REMOTE_ADDR": address}):
            g.actor = Actor("user", tenant, id_)
            for allowed in range(2):
                try:
                    limit_reader(reader, "test", 1)
                except TooMany:
                    return allowed
        return 2

    assert [calls(own(tenant), id_=name) for name in ("ann", "ben")] == [1, 0]
    assert [calls(self_registered(tenant), id_=name) for name in ("cat", "dan", "cat")] == [1, 1, 0]
    addresses = ("192.0.2.1", "192.0.2.2", "192.0.2.1")
    assert [calls(Reader.anonymous(tenant), address=address) for address in addresses] == [1, 1, 0]


def test_a_stranger_is_a_network_or_a_self_registered_user(app: Flask, tenant: str) -> None:
    with app.test_request_context(environ_base={"REMOTE_ADDR": "2001:db8::1"}):
        g.actor = Actor("user", tenant, "ann")
        assert stranger(own(tenant)) is None
        assert stranger(self_registered(tenant)) == "ann"
        assert stranger(Reader.anonymous(tenant)) == "2001:db8::/64"
