"""Pages: what a tenant's views and likes are counted for."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import marshmallow as ma
from flask import request
from flask.typing import ResponseReturnValue

from analytics.boards import series
from analytics.boards.series import Step
from analytics.ingest import page_writes, pages
from analytics.ingest.page_writes import MAX_PAGES_PER_CALL, PageWrite, Written
from analytics.ingest.pages import EXTERNAL_ID, Page, Visibility
from analytics.metrics import METRICS, VIEWS, counted_metrics, page_metrics
from app.api.blueprint import Blueprint, Schema, SliceIn, load, matching, metric_field
from app.http import paging
from app.http.auth import current_actor, current_reader
from app.http.board_answers import answer_key, stats_answer
from app.http.conditional import conditional, if_changed
from app.http.edge import quiet
from app.http.rights import May, requires
from app.http.services import services
from app.http.transactions import actor_tx, after_commit, again_after_deadlock, idempotent
from tenants.db import Tx, utcnow
from tenants.errors import DomainError, Invalid
from tenants.settings import SPACE_KEY

blueprint = Blueprint("pages", __name__, url_prefix="/api/v1/pages", description="Pages")

# For the contract; `pages.check` decides.
ONE_LINE = r"^[^\x00-\x1f\x7f]*[^\s\x00-\x1f\x7f][^\x00-\x1f\x7f]*$"
ADDRESS = r"^(?:/(?!/)|https?://[A-Za-z0-9\[])[^\\\x00-\x1f\x7f]*$"
VISIBILITIES = [visibility.value for visibility in Visibility]


class PagePutIn(Schema):
    space = ma.fields.String(required=True, metadata=matching(SPACE_KEY, description="the space's key"))
    title = ma.fields.String(
        required=True, metadata={"minLength": 1, "maxLength": pages.MAX_TITLE_CHARS, "pattern": ONE_LINE}
    )
    url = ma.fields.String(
        required=True,
        metadata={"maxLength": pages.MAX_URL_BYTES, "pattern": ADDRESS, "description": "an http address, or a path"},
    )
    visibility = ma.fields.String(validate=ma.validate.OneOf(VISIBILITIES))
    owner = ma.fields.String(metadata=matching(EXTERNAL_ID, description="the tenant's own id for the user"))


class PageItemIn(PagePutIn):
    external_id = ma.fields.String(required=True, metadata=matching(EXTERNAL_ID))


_ITEM = PageItemIn()


class _JudgedLater(ma.fields.Nested):
    """An item that the route loads itself: one that is not valid must not refuse the whole call."""

    def deserialize(self, value: Any, *_: Any, **__: Any) -> Any:
        return value


class BulkIn(Schema):
    pages = ma.fields.List(_JudgedLater(PageItemIn), required=True, validate=ma.validate.Length(1, MAX_PAGES_PER_CALL))


class RejectedPageOut(Schema):
    index = ma.fields.Integer(required=True, metadata={"description": "its place in the call, from 0"})
    code = ma.fields.String(required=True, metadata={"description": "invalid, duplicate_url or ceiling_reached"})
    detail = ma.fields.String(required=True)


class BulkOut(Schema):
    created = ma.fields.Integer(required=True)
    updated = ma.fields.Integer(required=True, metadata={"description": "pages that existed, changed or not"})
    rejected = ma.fields.List(ma.fields.Nested(RejectedPageOut), required=True)


class PageOut(Schema):
    id = ma.fields.Integer(required=True)
    external_id = ma.fields.String(required=True)
    space = ma.fields.String(required=True)
    title = ma.fields.String(required=True)
    url = ma.fields.String(required=True)
    visibility = ma.fields.String(metadata={"enum": VISIBILITIES})
    owner = ma.fields.String(allow_none=True)
    created_at = ma.fields.AwareDateTime()
    updated_at = ma.fields.AwareDateTime()


class StatsFields(Schema):
    as_of = ma.fields.AwareDateTime()


StatsOut = StatsFields.from_dict(
    {
        metric.name: ma.fields.Dict(
            keys=ma.fields.String(),
            values=ma.fields.Integer() if metric.is_whole else ma.fields.Float(),
            metadata={"description": "by window"},
        )
        for metric in page_metrics()
    },
    name="StatsOut",
)


class SeriesIn(Schema):
    metric = metric_field(counted_metrics(), load_default=VIEWS.name)
    step = ma.fields.Enum(Step, by_value=True, load_default=Step.HOUR)
    start = ma.fields.AwareDateTime(data_key="from")
    end = ma.fields.AwareDateTime(data_key="to")


class PointOut(Schema):
    at = ma.fields.AwareDateTime()
    value = ma.fields.Integer()


class SeriesOut(Schema):
    metric = metric_field(counted_metrics())
    step = ma.fields.String(metadata={"enum": [step.value for step in Step]})
    points = ma.fields.List(ma.fields.Nested(PointOut))


class PagesIn(SliceIn):
    space = ma.fields.String(validate=ma.validate.Length(1, 64))


class PagesOut(Schema):
    items = ma.fields.List(ma.fields.Nested(PageOut))
    next_cursor = ma.fields.String(allow_none=True)


@blueprint.put("/<external_id>")
@requires(May.WRITE_PAGES)
@idempotent
@blueprint.arguments(PagePutIn)
@blueprint.alt_response(201, schema=PageOut, success=True)
@blueprint.response(200, PageOut)
def put_page(body: dict[str, Any], external_id: str) -> ResponseReturnValue:
    """Create a page (201) or change it (200)."""
    with actor_tx() as tx:
        saved = page_writes.put(tx, external_id, **body, now=utcnow())
        shown = show(tx, [saved.page])[0]
    drop_answers()
    return (shown, 201) if saved.new else (shown, 200)


@blueprint.post("")
@requires(May.WRITE_PAGES)
@idempotent
@blueprint.arguments(BulkIn)
@blueprint.response(200, BulkOut)
def put_pages(body: dict[str, Any]) -> Any:
    """Create or change up to 1000 pages, each as `PUT` does. A rejected one stops no other."""
    rejected: dict[int, DomainError] = {}
    valid: dict[int, PageWrite] = {}
    for index, item in enumerate(body["pages"]):
        try:
            valid[index] = _read_item(item)
        except Invalid as error:
            rejected[index] = error
    with actor_tx() as tx:
        outcomes = page_writes.put_all(tx, list(valid.values()), now=utcnow())
    drop_answers()
    by_index = dict(zip(valid, outcomes, strict=True))
    rejected |= {index: outcome for index, outcome in by_index.items() if isinstance(outcome, DomainError)}
    created = sum(isinstance(outcome, Written) and outcome.new for outcome in outcomes)
    return {
        "created": created,
        "updated": len(body["pages"]) - created - len(rejected),
        "rejected": [
            {"index": index, "code": error.code, "detail": error.detail} for index, error in sorted(rejected.items())
        ],
    }


def _read_item(item: Any) -> PageWrite:
    if not isinstance(item, dict):
        raise Invalid("a page is a JSON object")
    return PageWrite(**load(_ITEM, item))


@blueprint.get("/<external_id>")
@requires(May.READ_PAGES)
@blueprint.response(200, PageOut)
def get_page(external_id: str) -> Any:
    """One page."""
    with actor_tx() as tx:
        return show(tx, [get_visible(tx, external_id)])[0]


@blueprint.get("")
@requires(May.READ_PAGES)
@blueprint.arguments(PagesIn, location="query")
@blueprint.response(200, PagesOut)
def list_pages(query: dict[str, Any]) -> Any:
    """All pages, or those of a space; newest first."""
    asked = paging.slice_of(query, id=int)
    with actor_tx() as tx:
        rows = pages.list_(
            tx,
            space=query.get("space"),
            before=asked.after,
            limit=asked.fetch,
            public_only=current_actor().public_only,
        )
        return asked.answer(rows, show=partial(show, tx))


@blueprint.delete("/<external_id>")
@requires(May.WRITE_PAGES)
@again_after_deadlock
@idempotent
@blueprint.response(204)
def delete_page(external_id: str) -> None:
    """Delete a page with its likes and views."""
    with actor_tx() as tx:
        page_writes.delete(tx, external_id)
    drop_answers()


def drop_answers() -> None:
    """After the commit: what this process keeps about the tenant's pages is older than the change."""
    after_commit(partial(services().boards.drop_of_tenant, current_actor().tenant_id))


@blueprint.get("/<external_id>/stats")
@quiet
@requires(May.READ_BOARDS)
@conditional("If-None-Match")
@blueprint.arguments(Schema, location="query")
@blueprint.response(200, StatsOut)
def get_stats(_query: dict[str, Any], external_id: str) -> ResponseReturnValue:
    """Likes, views and score of a page over each window. Supports `ETag` and 304."""
    reader = current_reader()
    key = answer_key(reader, f"{request.environ['PATH_INFO']}?")
    compute = partial(stats_answer, reader, external_id)
    return if_changed(services().boards.get_of_tenant(reader.tenant_id, key, compute))


@blueprint.get("/<external_id>/series")
@requires(May.READ_BOARDS)
@blueprint.arguments(SeriesIn, location="query")
@blueprint.response(200, SeriesOut)
def get_series(query: dict[str, Any], external_id: str) -> Any:
    """A page's views or likes by hour or day (UTC), with zeros. The default is the last 7 days, or 30 by day."""
    end = query.get("end") or utcnow()
    length = query["step"].usual_window.length
    start = query.get("start") or max(end, series.EARLIEST + length) - length
    with actor_tx() as tx:
        page = get_visible(tx, external_id)
        points = series.series(tx, page.id, METRICS[query["metric"]], step=query["step"], start=start, end=end)
    return {"metric": query["metric"], "step": query["step"].value, "points": points}


def get_visible(tx: Tx, external_id: str) -> Page:
    """The page, if the caller may see it; else it does not exist."""
    return pages.get(tx, external_id, public_only=current_actor().public_only)


def show(tx: Tx, rows: Sequence[Page]) -> list[dict[str, Any]]:
    shows_owners = not current_actor().public_only  # a tenant's own id for a user may be an e-mail address
    owners = pages.owners(tx, rows) if shows_owners else {}
    return [
        {
            "id": row.id,
            "external_id": row.external_id,
            "space": row.space_key,
            "title": row.title,
            "url": row.url,
            "visibility": row.visibility,
            "owner": owners.get(row.owner_id) if row.owner_id and shows_owners else None,
            "created_at": row.created_at,
            "updated_at": row.updated_at,
        }
        for row in rows
    ]
