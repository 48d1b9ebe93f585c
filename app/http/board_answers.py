"""Answers about boards: the top of a board, a rank, a page's numbers. Shared by the routes and the fast lane."""

import hashlib
from collections.abc import Sequence
from typing import Any

import orjson

from analytics import scoring
from analytics.boards import page_numbers, reading, weights
from analytics.boards.kept import BoardMemory
from analytics.boards.names import Board
from analytics.boards.reading import Around, ShownBoard, Top
from analytics.boards.rows import Position
from analytics.ingest import pages
from analytics.ingest.pages import EXTERNAL_ID, PageNotFound
from app.http import cursors
from app.http.answer_cache import Answer
from app.http.auth import Reader
from app.http.boards import rows_as_json, subject_as_json, user_fields
from tenants.db import tenant_tx, utcnow

MAX_TARGET_CHARS = 256


def answer_key(reader: Reader, target: str, *, of: str = "") -> tuple[str, tuple[bool, bool], str, str]:
    """Under what an answer is kept: what the caller may see, the address with its query, and whose answer it is.

    `of`: the caller, if others with the same rights get another answer.
    """
    if len(target) > MAX_TARGET_CHARS:  # a long address takes no more memory than another
        target = hashlib.blake2b(target.encode(errors="surrogateescape")).hexdigest()
    return reader.tenant_id, reader.audience, target, of


def top_answer(
    reader: Reader,
    board: Board,
    limit: int,
    after: Position | None,
    at_least: int,
    *,
    explain: bool,
    memory: BoardMemory,
) -> Answer:
    """The first rows of a board, or those after a position. `at_least`: at this version or a newer one."""
    shown = reading.read(board, Top(limit, after), now=utcnow(), at_least=at_least, memory=memory)
    return render_top(reader, shown, explain=explain)


def render_top(reader: Reader, shown: ShownBoard, *, explain: bool = False) -> Answer:
    items = rows_as_json(shown, user_fields(shown.board, reader))
    if explain:
        _explain(shown, items)
    return render(shown, items)


def page_rank_answer(
    reader: Reader, board: Board, name: str, around: int, at_least: int, *, memory: BoardMemory
) -> Answer:
    """The rank and value of one page, with its neighbours.

    A page id that is kept may be of a page that was deleted: if it is not on the board, PostgreSQL is asked.
    """
    kept = memory.page_ids.get((reader.tenant_id, name)) if memory.is_trusted() else None
    if kept is not None:
        shown = reading.read(board, Around(kept, around), now=utcnow(), at_least=at_least, memory=memory)
        if is_on(shown, kept):
            return render_rank(reader, shown, kept, around)
    page_id = _find_page(reader, name)
    memory.page_ids.keep((reader.tenant_id, name), page_id)
    return rank_answer(reader, board, page_id, around, at_least, memory=memory)


def rank_answer(
    reader: Reader, board: Board, subject: str, around: int, at_least: int, *, memory: BoardMemory
) -> Answer:
    """The same for a page or user by our id."""
    shown = reading.read(board, Around(subject, around), now=utcnow(), at_least=at_least, memory=memory)
    return render_rank(reader, shown, subject, around)


def stats_answer(reader: Reader, external_id: str) -> bytes:
    """A page's value of each metric over each window."""
    numbers = page_numbers.stats(reader.tenant_id, external_id, public_only=reader.public_only, now=utcnow())
    if numbers is None:
        raise PageNotFound(external_id)
    return orjson.dumps(numbers, option=orjson.OPT_UTC_Z)


def render(shown: ShownBoard, items: Sequence[dict[str, Any]]) -> Answer:
    body = {
        "items": items,
        "total": shown.total,
        "version": shown.version,
        "as_of": shown.as_of,
        "source": shown.source.value,
        "next_cursor": _cursor(shown.board, shown.next) if shown.next is not None else None,
    }
    return _answer_of(shown, body)


def _answer_of(shown: ShownBoard, body: dict[str, Any]) -> Answer:
    encoded = orjson.dumps(body, option=orjson.OPT_UTC_Z)
    return Answer.of_board(encoded, version=shown.version, is_verified=shown.is_newest)


def board_hash(board: Board) -> str:
    """Identifies the board in its cursors."""
    return hashlib.blake2b(board.key.encode(), digest_size=6).hexdigest()


def _cursor(board: Board, position: Position) -> str:
    return cursors.encode(board_hash(board), position.value, position.member)


def _find_page(reader: Reader, name: str) -> str:
    found = None
    if EXTERNAL_ID.fullmatch(name) is not None:
        found = pages.find_id(reader.tenant_id, name, public_only=reader.public_only)
    if found is None:
        raise PageNotFound(name)
    return found


def is_on(shown: ShownBoard, subject: str) -> bool:
    return any(row.subject == subject for row in shown.rows)


def render_rank(reader: Reader, shown: ShownBoard, subject: str, around: int) -> Answer:
    own = next((row for row in shown.rows if row.subject == subject), None)
    fields = user_fields(shown.board, reader)
    body: dict[str, Any] = {
        "rank": own.rank if own is not None else None,
        "value": own.value if own is not None else 0,
        "total": shown.total,
        "version": shown.version,
        "as_of": shown.as_of,
        "source": shown.source.value,
    }
    if own is not None:
        body |= subject_as_json(shown.board, own, fields)
    if around:
        body["around"] = rows_as_json(shown, fields)
    return _answer_of(shown, body)


def _explain(shown: ShownBoard, items: list[dict[str, Any]]) -> None:
    """Add how each score is computed, by the weights that the board uses. `pending`: the row has older numbers."""
    with tenant_tx(shown.board.tenant_id) as tx:
        counts = page_numbers.counts_of(tx, [int(row.subject) for row in shown.rows], shown.board.window)
        applied = weights.applied(tx)
    for item, row in zip(items, shown.rows, strict=True):
        of_page = counts.get(int(row.subject), {})
        explained = scoring.explain(applied, likes=of_page.get("likes", 0), views=of_page.get("views", 0))
        item["explain"] = {**explained, "pending": explained["score"] != row.value}
