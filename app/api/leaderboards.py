"""Leaderboards: reading boards, ranks and exports."""

import contextlib
import csv
import io
import re
from collections.abc import Iterator, Sequence
from datetime import date
from typing import Any

import marshmallow as ma
from flask import Response, g, request
from flask.typing import ResponseReturnValue

from analytics.boards import reading
from analytics.boards.names import Board
from analytics.boards.reading import AsOf, Only, ShownBoard, Top
from analytics.boards.rows import Position, Source
from analytics.ingest import pages
from analytics.ingest.pages import EXTERNAL_ID
from analytics.metrics import METRICS, POINTS, SCORE
from analytics.windows import Window
from app.api.blueprint import SOMETIMES, Blueprint, Schema, metric_field
from app.http import cursors
from app.http.answer_cache import Answer
from app.http.auth import Reader, current_actor, current_reader
from app.http.board_answers import answer_key, board_hash, page_rank_answer, rank_answer, render, top_answer
from app.http.boards import (
    PublicBoardsOnly,
    board_for,
    limit_anonymous,
    limit_reader,
    rows_as_json,
    stranger,
    user_fields,
)
from app.http.conditional import conditional, if_changed, version_in
from app.http.edge import quiet
from app.http.rights import May, requires_or_key
from app.http.services import services
from tenants import logs, users
from tenants.db import Tx, tenant_tx, utcnow
from tenants.errors import Invalid
from tenants.security_events import SecurityEvent

blueprint = Blueprint("leaderboards", __name__, url_prefix="/api/v1/leaderboards", description="Leaderboards")

MAX_ROWS = 1_000
MAX_MEMBERS = 100
MAX_AROUND = 100
MAX_ROWS_PER_CHUNK = 500
EXPORTS_PER_MINUTE = 30
MAX_CURSOR_VALUE = 1e18
MEMBER = re.compile(r"[0-9]{1,19}")
USER_MEMBER = re.compile(r"[0-9]{13}[0-9a-f]{16}:[0-9a-f-]{36}")
# The text before a character that starts a formula in spreadsheets (in some languages the full-width ones do too).
# Each run of separators and white space is matched once, so it takes linear time.
FORMULA = re.compile(r"""(?<![\s";|])[\s";|]*+(?=[=+\-@\uff1d\uff0b\uff0d\uff20])""")
# Characters at which some spreadsheets split cells.
SEPARATORS = frozenset(";|\t\r\n")


class BoardIn(Schema):
    scope = ma.fields.String(
        validate=ma.validate.Length(1, 80),
        metadata={
            "description": "tenant, space:<key>, public, public:<key>, global, users or users:<segment>. The default is"
            " tenant, or public for callers who see public pages only"
        },
    )
    window = ma.fields.Enum(Window, by_value=True, load_default=Window.WEEK)
    metric = metric_field(METRICS.values(), metadata={"description": f"the default is {SCORE}, or {POINTS} for users"})
    key = ma.fields.String(metadata={"description": "a publishable key, instead of the header"})


class ListIn(BoardIn):
    limit = ma.fields.Integer(load_default=10, validate=ma.validate.Range(1, MAX_ROWS))
    cursor = ma.fields.String(validate=ma.validate.Length(1, 512))
    as_of = ma.fields.Date(metadata={"description": "an earlier day: the board as it was at the end of it"})
    members = ma.fields.String(
        validate=ma.validate.Length(1, 14_000), metadata={"description": "only these pages, separated by commas"}
    )
    explain = ma.fields.Boolean(load_default=False, metadata={"description": "add how each score is computed"})


class RankIn(BoardIn):
    member = ma.fields.String(required=True, validate=ma.validate.Length(1, 128))
    around = ma.fields.Integer(load_default=0, validate=ma.validate.Range(0, MAX_AROUND))


class ShownPageOut(Schema):
    id = ma.fields.Integer()
    external_id = ma.fields.String()
    title = ma.fields.String()
    url = ma.fields.String()
    space = ma.fields.String()
    tenant = ma.fields.String(metadata={"description": "on global boards only", **SOMETIMES})


class ShownUserOut(Schema):
    id = ma.fields.String()
    username = ma.fields.String(allow_none=True)
    display_name = ma.fields.String(
        allow_none=True,
        metadata={"description": "not for strangers, unless the tenant's public_names is set", **SOMETIMES},
    )
    avatar_url = ma.fields.String(allow_none=True, metadata={"description": "as display_name", **SOMETIMES})
    external_id = ma.fields.String(allow_none=True, metadata={"description": "not for strangers", **SOMETIMES})


class CountWeightOut(Schema):
    count = ma.fields.Integer()
    weight = ma.fields.Float()
    points = ma.fields.Float()


class ExplainOut(Schema):
    formula = ma.fields.String()
    weights_version = ma.fields.Integer()
    likes = ma.fields.Nested(CountWeightOut)
    views = ma.fields.Nested(CountWeightOut)
    score = ma.fields.Float()
    pending = ma.fields.Boolean(metadata={"description": "whether the row shows older numbers"})


class RowOut(Schema):
    rank = ma.fields.Integer()
    value = ma.fields.Raw(metadata={"type": "number"})
    rank_change = ma.fields.Integer(allow_none=True, metadata={"description": "places gained since the previous day"})
    is_new = ma.fields.Boolean()
    page = ma.fields.Nested(ShownPageOut, allow_none=True, metadata={"description": "on boards of pages", **SOMETIMES})
    user = ma.fields.Nested(ShownUserOut, allow_none=True, metadata={"description": "on boards of users", **SOMETIMES})
    explain = ma.fields.Nested(ExplainOut, metadata={"description": "with explain=true", **SOMETIMES})


class ListOut(Schema):
    items = ma.fields.List(ma.fields.Nested(RowOut))
    total = ma.fields.Integer()
    version = ma.fields.Integer()
    as_of = ma.fields.AwareDateTime()
    source = ma.fields.String(metadata={"enum": [source.value for source in Source]})
    next_cursor = ma.fields.String(allow_none=True)


class RankOut(Schema):
    rank = ma.fields.Integer(allow_none=True)
    value = ma.fields.Raw(metadata={"type": "number"})
    total = ma.fields.Integer()
    version = ma.fields.Integer()
    as_of = ma.fields.AwareDateTime()
    source = ma.fields.String(metadata={"enum": [source.value for source in Source]})
    page = ma.fields.Nested(ShownPageOut, allow_none=True, metadata=SOMETIMES)
    user = ma.fields.Nested(ShownUserOut, allow_none=True, metadata=SOMETIMES)
    around = ma.fields.List(ma.fields.Nested(RowOut), metadata=SOMETIMES)


@blueprint.get("")
@quiet
@requires_or_key(May.READ_BOARDS)
@conditional("If-None-Match")
@blueprint.arguments(ListIn, location="query")
@blueprint.response(200, ListOut)
def read_board(query: dict[str, Any]) -> ResponseReturnValue:
    """The top of a board, or the rows after a cursor. Supports `ETag` and 304; `source` is where it was read."""
    reader = current_reader()
    board = board_for(reader, query)
    after = _position(board, query["cursor"]) if query.get("cursor") else None
    _check_combination(reader, board, query)
    if query.get("members") or query.get("as_of"):  # never cached
        limit_anonymous(reader)
    cache, tag = services().boards, version_in(request.headers.get("If-None-Match"))
    if query.get("members"):
        return if_changed(_subset(reader, board, query["members"], at_least=max(tag, cache.newest(board))))
    if query.get("as_of"):
        return if_changed(_past(reader, board, query["as_of"], limit=query["limit"], after=after))

    def compute(at_least: int) -> Answer:
        limit_anonymous(reader)
        return top_answer(reader, board, query["limit"], after, at_least, explain=query["explain"], memory=cache.memory)

    return if_changed(cache.get(board, answer_key(reader, _target()), compute, at_least=tag))


@blueprint.get("/rank")
@quiet
@requires_or_key(May.READ_BOARDS)
@conditional("If-None-Match")
@blueprint.arguments(RankIn, location="query")
@blueprint.response(200, RankOut)
def read_rank(query: dict[str, Any]) -> ResponseReturnValue:
    """The rank and value of one page or user; with `around`, also its neighbours. Supports `ETag` and 304."""
    reader, member = current_reader(), query["member"]
    board = board_for(reader, query)
    limit_anonymous(reader)
    cache, tag = services().boards, version_in(request.headers.get("If-None-Match"))

    def compute(at_least: int) -> Answer:
        if not board.is_users:
            return page_rank_answer(reader, board, member, query["around"], at_least, memory=cache.memory)
        subject = _subjects(reader, board, [member]).get(member)
        if subject is None:
            raise users.UserNotFound
        return rank_answer(reader, board, subject, query["around"], at_least, memory=cache.memory)

    own = current_actor().id if member == "me" and not reader.is_anonymous else ""
    return if_changed(cache.get(board, answer_key(reader, _target(), of=own), compute, at_least=tag))


def _target() -> str:
    """The address of this request, with its query."""
    return f"{request.environ['PATH_INFO']}?{request.environ.get('QUERY_STRING', '')}"


@blueprint.get("/export.csv")
@requires_or_key(May.READ_BOARDS)
@blueprint.arguments(BoardIn, location="query")
@blueprint.response(200, {"type": "string"}, content_type="text/csv", description="The whole board")
def export(query: dict[str, Any]) -> Response:
    """The whole board as CSV, streamed; safe to open in a spreadsheet. If it fails, it ends with `# incomplete`."""
    reader = current_reader()
    board = board_for(reader, query)
    limit_reader(reader, "export", EXPORTS_PER_MINUTE)

    def start() -> Iterator[bytes]:
        first = _export_chunk(board, after=None)  # an error here is an error answer, not half a file
        return (part.encode() for part in _csv(reader, board, first))

    name = board.topic.replace(":", "-")
    exported = services().exports.begin(reader.tenant_id, start, stranger=stranger(reader))
    logs.audit(SecurityEvent.BOARD_EXPORTED, board=board.topic)
    return Response(
        exported,
        content_type="text/csv; charset=utf-8",
        headers={"Content-Disposition": f'attachment; filename="plaudit-{name}.csv"', "Cache-Control": "no-store"},
    )


def _check_combination(reader: Reader, board: Board, query: dict[str, Any]) -> None:
    """Refuse parameters that cannot be combined."""
    errors: dict[str, str] = {}
    if query["explain"]:
        if reader.public_only:
            raise PublicBoardsOnly("The weights are not public, so explain is only for callers who see private pages")
        if board.metric is not SCORE:
            errors["explain"] = "only for metric=score"
        elif board.is_global:
            errors["explain"] = "not on the global boards: each tenant has its own weights"
        elif query.get("as_of"):
            errors["explain"] = "cannot be combined with as_of"
    if query.get("members"):
        others = [name for name in ("as_of", "cursor", "explain") if query.get(name)]
        if others:
            errors["members"] = f"cannot be combined with {' or '.join(others)}"
    if errors:
        raise Invalid.fields(errors)


def _past(reader: Reader, board: Board, day: date, *, limit: int, after: Position | None) -> Answer:
    if day >= utcnow().date():
        raise Invalid.field("as_of", "a day before today (UTC)")
    shown = reading.read(board, AsOf(day, limit, after), now=utcnow())
    return render(shown, rows_as_json(shown, user_fields(board, reader)))


def _subset(reader: Reader, board: Board, members: str, *, at_least: int) -> Answer:
    names = list(dict.fromkeys(name for name in members.split(",") if name))
    if not 1 <= len(names) <= MAX_MEMBERS:
        raise Invalid.field("members", f"1 to {MAX_MEMBERS} pages, separated by commas")
    subjects = _subjects(reader, board, names)
    shown = reading.read(board, Only(list(subjects.values())), now=utcnow(), at_least=at_least)
    return render(shown, rows_as_json(shown, user_fields(board, reader)))


def _subjects(reader: Reader, board: Board, names: Sequence[str]) -> dict[str, str]:
    """The ids of pages by external id, or of users by our id, `ext:…` or `me`. Unknown names are omitted."""
    if board.is_users:
        user_ids = {}
        with tenant_tx(reader.tenant_id) as tx:
            for name in names:
                with contextlib.suppress(users.UserNotFound):
                    if reader.sees_external_ids or not name.startswith("ext:"):
                        user_ids[name] = str(_user(tx, name).id)
        return user_ids
    external_ids = [name for name in names if EXTERNAL_ID.fullmatch(name)]
    with tenant_tx(reader.tenant_id) as tx:
        return pages.ids_of(tx, external_ids, public_only=reader.public_only)


def _user(tx: Tx, name: str) -> users.User:
    actor = g.get("actor")
    return users.get(tx, actor.user_id) if name == "me" and actor is not None else users.find(tx, name)


def _position(board: Board, cursor: str) -> Position:
    of_board, value, member = cursors.decode(cursor, str, object, str)
    is_number = isinstance(value, int | float) and abs(value) < MAX_CURSOR_VALUE
    is_member = (USER_MEMBER if board.is_users else MEMBER).fullmatch(member)
    if of_board != board_hash(board) or not is_number or not is_member:
        raise cursors.not_ours()
    return Position(board.metric.load(value), member)


def _export_chunk(board: Board, *, after: Position | None) -> ShownBoard:
    return reading.read(board, Top(MAX_ROWS_PER_CHUNK, after), now=utcnow(), with_movement=False)


def _csv(reader: Reader, board: Board, chunk: ShownBoard) -> Iterator[str]:
    columns = ["rank", "value", "external_id", "title", "url", "space", "page_id"]
    if board.is_users:
        columns = ["rank", "value", "user_id", *user_fields(board, reader)[1:]]
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
    csv.writer(out).writerow([_escape_formula(cell) for cell in cells])
    return out.getvalue()


def _escape_formula(cell: Any) -> Any:
    """Put an apostrophe before what a spreadsheet may read as a formula: at the start, or after a separator."""

    def quote(run: "re.Match[str]") -> str:
        return f"{run[0]}'" if run.start() == 0 or not SEPARATORS.isdisjoint(run[0]) else run[0]

    return FORMULA.sub(quote, cell) if isinstance(cell, str) else cell
