"""Unknown addresses: those of refused views, which an admin can make pages."""

from typing import Any

import marshmallow as ma

from analytics.ingest import auto_pages, unknown_addresses
from app.api.blueprint import Blueprint, Schema, SliceIn
from app.api.pages import VISIBILITIES, PageOut, drop_answers, show
from app.http import paging
from app.http.rights import May, requires
from app.http.transactions import actor_tx, idempotent
from tenants import settings as tenant_settings
from tenants.db import utcnow

blueprint = Blueprint(
    "unknown_addresses", __name__, url_prefix="/api/v1/ingest/unknown", description="Unknown addresses"
)

URL = {"description": "as the list has it"}


class UnknownOut(Schema):
    url = ma.fields.String(required=True, metadata={"description": "with `*` for each value in its query"})
    count = ma.fields.Integer(required=True, metadata={"description": "how many views of it were refused"})
    first_seen = ma.fields.AwareDateTime(required=True)
    last_seen = ma.fields.AwareDateTime(required=True)
    title = ma.fields.String(allow_none=True, metadata={"description": "of the document, if the browser sent it"})
    space = ma.fields.String(metadata={"description": "in which its page would be, by `space_rules`"})
    visibility = ma.fields.String(metadata={"enum": VISIBILITIES})


class UnknownsOut(Schema):
    items = ma.fields.List(ma.fields.Nested(UnknownOut))
    next_cursor = ma.fields.String(allow_none=True)


class NewPageIn(Schema):
    url = ma.fields.String(required=True, metadata=URL)
    space = ma.fields.String(metadata={"description": "without it, as `space_rules` say"})
    title = ma.fields.String(metadata={"description": "without it, the document's, or the end of the address"})
    visibility = ma.fields.String(validate=ma.validate.OneOf(VISIBILITIES))


class DismissIn(Schema):
    url = ma.fields.String(required=True, metadata=URL)


@blueprint.get("")
@requires(May.SEE_REJECTIONS)
@blueprint.arguments(SliceIn, location="query")
@blueprint.response(200, UnknownsOut)
def list_unknown(query: dict[str, Any]) -> Any:
    """Addresses of refused views that no page has, the most counted first. Each is kept for 7 days after the last."""
    asked = paging.slice_of(query, refused=int, digest=str)
    with actor_tx() as tx:
        settings, _ = tenant_settings.read(tx)
        rows = unknown_addresses.list_(tx, after=asked.after, limit=asked.fetch)
    return asked.answer(rows, show=lambda shown: [_as_json(row, settings) for row in shown])


@blueprint.post("/pages")
@requires(May.WRITE_PAGES)
@idempotent
@blueprint.arguments(NewPageIn)
@blueprint.response(201, PageOut)
def make_page(body: dict[str, Any]) -> Any:
    """Make a listed address a page, for every value of its query. It leaves the list."""
    listed = body.pop("url")
    with actor_tx() as tx:
        settings, _ = tenant_settings.read(tx)
        saved = auto_pages.make_listed(tx, listed, **body, settings=settings, now=utcnow())
        shown = show(tx, [saved.page])[0]
    drop_answers()
    return shown


@blueprint.delete("")
@requires(May.WRITE_PAGES)
@idempotent
@blueprint.arguments(DismissIn, location="query")
@blueprint.response(204)
def dismiss(query: dict[str, Any]) -> None:
    """Remove an address from the list. It comes back if a view of it is refused again."""
    with actor_tx() as tx:
        unknown_addresses.dismiss(tx, query["url"])


def _as_json(row: Any, settings: tenant_settings.TenantSettings) -> dict[str, Any]:
    rule = auto_pages.rule_for(row.address, settings)
    return {
        "url": row.address,
        "count": row.refused,
        "first_seen": row.first_seen,
        "last_seen": row.last_seen,
        "title": row.title,
        "space": rule.space,
        "visibility": rule.visibility,
    }
