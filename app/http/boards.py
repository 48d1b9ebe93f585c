"""Boards over HTTP: which a reader may read and how often, and how rows are written as JSON."""

from collections.abc import Sequence
from typing import Any

from flask import g

from analytics.boards.names import Board, board_of
from analytics.boards.reading import ShownBoard, ShownRow
from app.http.auth import Reader, caller_network
from tenants import settings as tenant_settings
from tenants import throttle
from tenants.errors import Forbidden

READS_PER_MINUTE = 600


class PublicBoardsOnly(Forbidden):
    code = "public_boards_only"
    title = "Only public boards can be read with these credentials"


def board_for(reader: Reader, query: dict[str, Any]) -> Board:
    """The board that a request names, if its reader may read it."""
    scope = query.get("scope") or ("public" if reader.public_only else "tenant")
    board = board_of(reader.tenant_id, scope, query["window"], query.get("metric"))
    if reader.is_anonymous and board.is_users and not tenant_settings.recent(reader.tenant_id).public_scoreboard:
        raise PublicBoardsOnly("This tenant's scoreboard is not public")
    if reader.public_only and not board.is_public and not board.is_users:
        raise PublicBoardsOnly("Ask for scope=public, public:<key> or global")
    return board


def user_fields(board: Board, reader: Reader) -> tuple[str, ...]:
    """What this reader sees of the users on the board; nothing on boards of pages.

    Strangers see no external id, since one may be an e-mail address, and names and pictures only if the tenant shows
    them in public.
    """
    if not board.is_users:
        return ()
    if reader.sees_external_ids:
        return ("id", "username", "display_name", "avatar_url", "external_id")
    return ("id", "username", *(("display_name", "avatar_url") if sees_names(reader) else ()))


def sees_names(reader: Reader) -> bool:
    """Whether the reader sees the names and pictures of other users."""
    return not reader.public_only or tenant_settings.recent(reader.tenant_id).public_names


def rows_as_json(shown: ShownBoard, fields: Sequence[str]) -> list[dict[str, Any]]:
    """`fields`: of users, those that the reader may see (`user_fields`)."""
    board = shown.board
    kind = "user" if board.is_users else "page"
    return [
        {
            "rank": row.rank,
            "value": row.value,
            "rank_change": row.rank_change,
            "is_new": row.is_new,
            kind: _user(row, fields) if board.is_users else _page(row, of_global=board.is_global),
        }
        for row in shown.rows
    ]


def subject_as_json(board: Board, row: ShownRow, fields: Sequence[str]) -> dict[str, Any]:
    """The page or user of a row; of users those fields."""
    if board.is_users:
        return {"user": _user(row, fields)}
    return {"page": _page(row, of_global=board.is_global)}


def _page(row: ShownRow, *, of_global: bool) -> dict[str, Any] | None:
    shown = row.shown
    if shown is None:
        return None
    page = {
        "id": int(row.subject),
        "external_id": shown["external_id"],
        "title": shown["title"],
        "url": shown["url"],
        "space": shown["space"],
    }
    if of_global:
        page["tenant"] = shown["tenant"]
    return page


def _user(row: ShownRow, fields: Sequence[str]) -> dict[str, Any] | None:
    return {name: row.shown[name] for name in fields} if row.shown is not None else None


def limit_reader(reader: Reader, name: str, per_minute: int) -> None:
    """Limit a tenant's own callers together, and each stranger separately."""
    key = (reader.tenant_id, stranger(reader) or "")
    throttle.require(name, throttle.per_minute(per_minute), *key, detail="Too many requests: try again later")


def stranger(reader: Reader) -> str | None:
    """A caller from outside the tenant: a network with a publishable key, or a self-registered user; else None."""
    if reader.is_anonymous:
        return caller_network()
    return str(g.actor.id) if reader.public_only else None


def limit_anonymous(reader: Reader) -> None:
    """Anybody can find a publishable key, so reads with one are limited."""
    if reader.is_anonymous:
        limit_reader(reader, "boards", READS_PER_MINUTE)
