"""Boards as a reader sees them: which they may read, and what the rows show of their pages or users."""

from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from typing import Any

from analytics.boards import reading, snapshots, user_numbers
from analytics.boards.names import ALL_TENANTS, Board, board_of
from analytics.boards.reading import Listing, Row
from analytics.metrics import Metric
from app.http.auth import Reader
from tenants import settings as tenant_settings
from tenants.db import tenant_tx
from tenants.errors import Forbidden


class PublicBoardsOnly(Forbidden):
    code = "public_boards_only"
    title = "Only public boards can be read with these credentials"


def board_for(reader: Reader, query: dict[str, Any]) -> Board:
    scope = query.get("scope") or ("public" if reader.public_only else "tenant")
    usual = Metric.POINTS if scope.partition(":")[0] == "users" else Metric.SCORE
    board = board_of(reader.tenant_id, scope, query["window"], query.get("metric") or usual)
    if reader.is_anonymous and board.is_users and not tenant_settings.recent(reader.tenant_id).public_scoreboard:
        raise PublicBoardsOnly("This tenant's scoreboard is not public")
    if reader.public_only and not board.is_public and not board.is_users:
        raise PublicBoardsOnly("Ask for scope=public, public:<key> or global")
    return board


class Rows:
    """The rows of a board as they are shown: with their pages, and how they moved since the day before."""

    def __init__(self, board: Board, listing: Listing, *, today: date, external_ids: bool) -> None:
        self._board = board
        self._external_ids = external_ids
        self._pages = pages_of(board, listing)
        self.rows = shown_rows(board, listing, self._pages)
        self._before = _ranks_on(board, today - timedelta(days=1)) if self.rows else None

    def items(self) -> list[dict[str, Any]]:
        return [{"rank": row.rank, "value": row.value, **self._movement(row), **self.shown(row)} for row in self.rows]

    def shown(self, row: Row) -> dict[str, Any]:
        if self._board.is_users:
            user = self._pages[reading.subject(self._board, row.member)]
            return {"user": user if self._external_ids else _public(user)}
        return {"page": self._page(row.member)}

    def _page(self, member: str) -> dict[str, Any] | None:
        """None: the page was deleted since."""
        fields = self._pages.get(member)
        if fields is None:
            return None
        shown: dict[str, Any] = {"id": int(member)}
        shown |= {name: fields[name] for name in ("external_id", "title", "url", "space")}
        if self._board.tenant_id == ALL_TENANTS:
            shown["tenant"] = fields["tenant"]
        return shown

    def _movement(self, row: Row) -> dict[str, Any]:
        if self._before is None:
            return {"rank_change": None, "is_new": False}
        before, is_whole = self._before
        rank = before.get(reading.subject(self._board, row.member))
        return {"rank_change": rank - row.rank if rank is not None else None, "is_new": rank is None and is_whole}


def pages_of(board: Board, listing: Listing) -> Mapping[str, Mapping[str, Any]]:
    """What the rows show of their pages, or of their users."""
    members = [reading.subject(board, row.member) for row in listing.rows]
    if not members:
        return {}
    if board.is_users:
        with tenant_tx(board.tenant_id) as tx:
            return user_numbers.names(tx, members)
    return reading.summaries(board, members, source=listing.source)


def shown_rows(board: Board, listing: Listing, pages: Mapping[str, Any]) -> Sequence[Row]:
    """A public board says nothing of a page that is not public any more, not even its rank; nor any of who is gone."""
    if not board.is_public and not board.is_users:
        return listing.rows
    return [row for row in listing.rows if reading.subject(board, row.member) in pages]


def _ranks_on(board: Board, day: date) -> tuple[dict[str, int], bool] | None:
    """Everybody's rank at the end of a day, and whether that is really everybody."""
    with reading.inside(board) as tx:
        kept = snapshots.sealed(tx, board, day)
    if kept is None:
        return None
    return {reading.subject(board, row.member): row.rank for row in kept.rows}, kept.is_whole


def _public(user: Mapping[str, Any]) -> dict[str, Any]:
    """What anybody may see of a user: a tenant's own id for them may be an e-mail address."""
    return {"id": user["id"], "username": user["username"]}
