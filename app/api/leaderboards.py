"""Leaderboards: what matters, in which space, over which time."""

import contextlib
import csv
import hashlib
import io
import re
from collections.abc import Iterator, Sequence
from datetime import date
from typing import Any

import marshmallow as ma
import orjson
from flask import Response, g
from flask.typing import ResponseReturnValue

from analytics import scoring
from analytics.boards import reading, series, weights
from analytics.boards.names import Board
from analytics.boards.reading import Around, AsOf, Only, ShownBoard, Top
from analytics.boards.rows import Position
from analytics.ingest import pages
from analytics.ingest.pages import EXTERNAL_ID, PageNotFound
from analytics.metrics import METRICS, SCORE
from analytics.windows import Window
from app.api.blueprint import Blueprint, Schema, metric_field
from app.http import cursors
from app.http.answer_cache import Answer
from app.http.auth import Reader, caller_network, current_reader
from app.http.boards import PublicBoardsOnly, board_for, rows_as_json, subject_as_json
from app.http.conditional import if_changed
from app.http.edge import quiet
from app.http.rights import May, requires_or_key
from app.http.services import services
from tenants import throttle, users
from tenants.db import Tx, tenant_tx, utcnow
from tenants.errors import Invalid

blueprint = Blueprint("leaderboards", __name__, url_prefix="/api/v1/leaderboards", description="Leaderboards")

MAX_ROWS = 1_000
MAX_MEMBERS = 100
MAX_AROUND = 100
EXPORT_CHUNK = 500
EXPORTS_PER_MINUTE = 30
READS_PER_MINUTE = 600
BEYOND_ANY_VALUE = 1e18
MEMBER = re.compile(r"[0-9]{1,19}")
USER_MEMBER = re.compile(r"[0-9]{13}[0-9a-f]{16}:[0-9a-f-]{36}")
# What stands before a sign that a spreadsheet may take for a formula's. (Full-width signs are taken in some languages.)
# Each run of separators and white space is tried once, so it is linear.
FORMULA = re.compile(r"""(?<![\s";|])[\s";|]*+(?=[=+\-@\uff1d\uff0b\uff0d\uff20])""")
# What some spreadsheets split cells on.
SEPARATORS = frozenset(";|\t\r\n")


class BoardIn(Schema):
    scope = ma.fields.String(
        validate=ma.validate.Length(1, 80),
        metadata={
            "description": "tenant, space:<key>, public, public:<key>, global, users or users:<segment>. Without it"
            " tenant, or public for those who see public pages only"
        },
    )
    window = ma.fields.Enum(Window, by_value=True, load_default=Window.WEEK)
    metric = metric_field(METRICS.values(), metadata={"description": "score, or for users points"})
    key = ma.fields.String(metadata={"description": "a publishable key, instead of the header"})


class ListIn(BoardIn):
    limit = ma.fields.Integer(load_default=10, validate=ma.validate.Range(1, MAX_ROWS))
    cursor = ma.fields.String(validate=ma.validate.Length(1, 512))
    as_of = ma.fields.Date(metadata={"description": "an earlier day: the board as it was at its end"})
    members = ma.fields.String(
        validate=ma.validate.Length(1, 14_000), metadata={"description": "only these pages, with commas between"}
    )
    explain = ma.fields.Boolean(load_default=False, metadata={"description": "how each score came about"})


class RankIn(BoardIn):
    member = ma.fields.String(required=True, validate=ma.validate.Length(1, 128))
    around = ma.fields.Integer(load_default=0, validate=ma.validate.Range(0, MAX_AROUND))


class ShownPageOut(Schema):
    id = ma.fields.Integer()
    external_id = ma.fields.String()
    title = ma.fields.String()
    url = ma.fields.String()
    space = ma.fields.String()
    tenant = ma.fields.String(metadata={"description": "on the global boards"})


class ShownUserOut(Schema):
    id = ma.fields.String()
    username = ma.fields.String(allow_none=True)
    external_id = ma.fields.String(allow_none=True)


class RowOut(Schema):
    rank = ma.fields.Integer()
    value = ma.fields.Raw(metadata={"type": "number"})
    rank_change = ma.fields.Integer(allow_none=True, metadata={"description": "places gained since the day before"})
    is_new = ma.fields.Boolean()
    page = ma.fields.Nested(ShownPageOut, allow_none=True, metadata={"description": "on boards of pages"})
    user = ma.fields.Nested(ShownUserOut, metadata={"description": "on boards of users"})


class ListOut(Schema):
    items = ma.fields.List(ma.fields.Nested(RowOut))
    total = ma.fields.Integer()
    version = ma.fields.Integer()
    as_of = ma.fields.AwareDateTime()
    source = ma.fields.String(metadata={"enum": ["redis", "snapshot", "postgres"]})
    next_cursor = ma.fields.String(allow_none=True)


class RankOut(Schema):
    rank = ma.fields.Integer(allow_none=True)
    value = ma.fields.Raw(metadata={"type": "number"})
    total = ma.fields.Integer()
    version = ma.fields.Integer()
    as_of = ma.fields.AwareDateTime()
    source = ma.fields.String()
    page = ma.fields.Nested(ShownPageOut, allow_none=True)
    user = ma.fields.Nested(ShownUserOut, allow_none=True)
    around = ma.fields.List(ma.fields.Nested(RowOut))


@blueprint.get("")
@quiet
@requires_or_key(May.READ_BOARDS)
@blueprint.arguments(ListIn, location="query")
@blueprint.alt_response(200, schema=ListOut, success=True)
def read_board(query: dict[str, Any]) -> ResponseReturnValue:
    """The top of a board, or what comes after a cursor. `ETag` and 304; `source` says where it was read."""
    reader = current_reader()
    board = board_for(reader, query)
    after = _position(board, query["cursor"]) if query.get("cursor") else None
    _check_together(reader, board, query)
    if query.get("members") or query.get("as_of"):  # never in memory
        limit_key(reader)
    if query.get("members"):
        return if_changed(_subset(reader, board, query["members"]))
    if query.get("as_of"):
        return if_changed(_as_it_was(reader, board, query["as_of"], limit=query["limit"], after=after))
    shelf = services().boards

    def make() -> Answer:
        limit_key(reader)
        return _now(reader, board, query["limit"], after, explain=query["explain"])

    what = (query["limit"], after, query["explain"], reader.audience)
    return if_changed(shelf.get(board, what, make))


@blueprint.get("/rank")
@quiet
@requires_or_key(May.READ_BOARDS)
@blueprint.arguments(RankIn, location="query")
@blueprint.response(200, RankOut)
def read_rank(query: dict[str, Any]) -> Any:
    """One page's rank and value; with `around`, also its neighbours."""
    reader = current_reader()
    board = board_for(reader, query)
    limit_key(reader)
    subject = _subjects(reader, board, [query["member"]]).get(query["member"])
    if subject is None:
        raise users.UserNotFound if board.is_users else PageNotFound(query["member"])
    shown = reading.read(board, Around(subject, query["around"]), now=utcnow())
    own = next((row for row in shown.rows if row.subject == subject), None)
    external_ids = reader.sees_external_ids
    answer = {
        "rank": own.rank if own is not None else None,
        "value": own.value if own is not None else 0,
        "total": shown.total,
        "version": shown.version,
        "as_of": shown.as_of,
        "source": shown.source.value,
        **(subject_as_json(board, own, external_ids=external_ids) if own is not None else {}),
    }
    return {**answer, "around": rows_as_json(shown, external_ids=external_ids)} if query["around"] else answer


@blueprint.get("/export.csv")
@requires_or_key(May.READ_BOARDS)
@blueprint.arguments(BoardIn, location="query")
@blueprint.doc(responses={"200": {"description": "text/csv: the whole board"}})
def export(query: dict[str, Any]) -> Response:
    """The whole board as CSV, streamed; safe to open in a spreadsheet. One that breaks off ends with `# incomplete`."""
    reader = current_reader()
    board = board_for(reader, query)
    limit_reader(reader, "export", EXPORTS_PER_MINUTE)

    def make() -> Iterator[bytes]:
        first = _export_chunk(board, after=None)  # what fails now is an answer, not half a file
        return (part.encode() for part in _csv(reader, board, first))

    name = board.topic.replace(":", "-")
    return Response(
        services().exports.begin(reader.tenant_id, make, stranger=_stranger(reader)),
        content_type="text/csv; charset=utf-8",
        headers={"Content-Disposition": f'attachment; filename="plaudit-{name}.csv"', "Cache-Control": "no-store"},
    )


def limit_reader(reader: Reader, name: str, per_minute: int) -> None:
    """For a tenant's own callers together; for each stranger by themselves."""
    whose = (reader.tenant_id, _stranger(reader) or "")
    throttle.require(name, throttle.per_minute(per_minute), *whose, detail="Too many in a minute: try again later")


def _stranger(reader: Reader) -> str | None:
    """Who is not one of the tenant's own: a network, with a publishable key, or a user who registered alone."""
    if reader.is_anonymous:
        return caller_network()
    return str(g.actor.id) if reader.public_only else None


def limit_key(reader: Reader) -> None:
    """Anybody may have a publishable key: what it costs to read with one has a limit."""
    if reader.is_anonymous:
        limit_reader(reader, "boards", READS_PER_MINUTE)


def _check_together(reader: Reader, board: Board, query: dict[str, Any]) -> None:
    """What can be asked for at once."""
    errors: dict[str, str] = {}
    if query["explain"]:
        if reader.public_only:
            raise PublicBoardsOnly("The weights are not public, so explain is for those who see private pages")
        if board.metric is not SCORE:
            errors["explain"] = "there is nothing to explain but the score: ask for metric=score"
        elif board.is_global:
            errors["explain"] = "not on the global boards: every tenant has its own weights"
        elif query.get("as_of"):
            errors["explain"] = "not together with as_of"
    if query.get("members"):
        others = [name for name in ("as_of", "cursor", "explain") if query.get(name)]
        if others:
            errors["members"] = f"not together with {' or '.join(others)}"
    if errors:
        raise Invalid.fields(errors)


def _now(reader: Reader, board: Board, limit: int, after: Position | None, *, explain: bool) -> Answer:
    shown = reading.read(board, Top(limit, after), now=utcnow())
    items = rows_as_json(shown, external_ids=reader.sees_external_ids)
    if explain:
        _explain(shown, items)
    return _rendered(shown, items)


def _as_it_was(reader: Reader, board: Board, day: date, *, limit: int, after: Position | None) -> Answer:
    if day >= utcnow().date():
        raise Invalid.field("as_of", "a day before today (UTC)")
    shown = reading.read(board, AsOf(day, limit, after), now=utcnow())
    return _rendered(shown, rows_as_json(shown, external_ids=reader.sees_external_ids))


def _subset(reader: Reader, board: Board, members: str) -> Answer:
    wanted = list(dict.fromkeys(name for name in members.split(",") if name))
    if not 1 <= len(wanted) <= MAX_MEMBERS:
        raise Invalid.field("members", f"1 to {MAX_MEMBERS} pages, with commas between")
    subjects = _subjects(reader, board, wanted)
    shown = reading.read(board, Only(list(subjects.values())), now=utcnow())
    return _rendered(shown, rows_as_json(shown, external_ids=reader.sees_external_ids))


def _subjects(reader: Reader, board: Board, names: Sequence[str]) -> dict[str, str]:
    """The ids that these names stand for: pages by their external ids, users by our ids, `ext:…` or `me`."""
    if board.is_users:
        found = {}
        with tenant_tx(reader.tenant_id) as tx:
            for name in names:
                with contextlib.suppress(users.UserNotFound):
                    if reader.sees_external_ids or not name.startswith("ext:"):
                        found[name] = str(_user(tx, name).id)
        return found
    external_ids = [name for name in names if EXTERNAL_ID.fullmatch(name)]
    with tenant_tx(reader.tenant_id) as tx:
        return pages.ids_of(tx, external_ids, public_only=reader.public_only)


def _user(tx: Tx, name: str) -> users.User:
    actor = g.get("actor")
    return users.get(tx, actor.user_id) if name == "me" and actor is not None else users.find(tx, name)


def _explain(shown: ShownBoard, items: list[dict[str, Any]]) -> None:
    """By the weights that the boards are scored by. `pending`: the row does not show these numbers yet."""
    with tenant_tx(shown.board.tenant_id) as tx:
        counts = series.counts_of(tx, [int(row.subject) for row in shown.rows], shown.board.window)
        applied = weights.applied(tx)
    for item, row in zip(items, shown.rows, strict=True):
        of_page = counts.get(int(row.subject), {})
        explained = scoring.explain(applied, likes=of_page.get("likes", 0), views=of_page.get("views", 0))
        item["explain"] = {**explained, "pending": explained["score"] != row.value}


def _rendered(shown: ShownBoard, items: list[dict[str, Any]]) -> Answer:
    body = orjson.dumps(
        {
            "items": items,
            "total": shown.total,
            "version": shown.version,
            "as_of": shown.as_of,
            "source": shown.source.value,
            "next_cursor": _cursor(shown.board, shown.next) if shown.next is not None else None,
        },
        option=orjson.OPT_UTC_Z,
    )
    return Answer.of(body, version=shown.version)


def _cursor(board: Board, position: Position) -> str:
    return cursors.encode(_mark(board), position.value, position.member)


def _mark(board: Board) -> str:
    """Which board a cursor is of."""
    return hashlib.blake2b(board.key.encode(), digest_size=6).hexdigest()


def _position(board: Board, cursor: str) -> Position:
    whose, value, member = cursors.decode(cursor, str, object, str)
    is_number = isinstance(value, int | float) and abs(value) < BEYOND_ANY_VALUE
    right = (USER_MEMBER if board.is_users else MEMBER).fullmatch(member)
    if whose != _mark(board) or not is_number or not right:
        raise cursors.BadCursor
    return Position(board.metric.load(value), member)


def _export_chunk(board: Board, *, after: Position | None) -> ShownBoard:
    return reading.read(board, Top(EXPORT_CHUNK, after), now=utcnow(), with_movement=False)


def _csv(reader: Reader, board: Board, chunk: ShownBoard) -> Iterator[str]:
    columns = ["rank", "value", "external_id", "title", "url", "space", "page_id"]
    if board.is_users:
        columns = ["rank", "value", "user_id", "username", *(["external_id"] if reader.sees_external_ids else [])]
    if board.is_global:
        columns.append("tenant")
    yield _csv_line(columns)
    while True:
        lines = []
        for row in chunk.rows:
            numbers = {"rank": row.rank, "value": row.value, "page_id": row.subject, "user_id": row.subject}
            cells = {**(row.shown or {}), **numbers}
            lines.append(_csv_line([cells.get(name) or "" for name in columns]))
        yield "".join(lines)
        if chunk.next is None:
            return
        chunk = _export_chunk(board, after=chunk.next)


def _csv_line(cells: Sequence[Any]) -> str:
    out = io.StringIO()
    csv.writer(out).writerow([_harmless(cell) for cell in cells])
    return out.getvalue()


def _harmless(cell: Any) -> Any:
    """Text behind an apostrophe is never a formula: at the start of a cell, or of what may be taken for one."""

    def quote(run: "re.Match[str]") -> str:
        return f"{run[0]}'" if run.start() == 0 or not SEPARATORS.isdisjoint(run[0]) else run[0]

    return FORMULA.sub(quote, cell) if isinstance(cell, str) else cell
