"""The list of spaces."""

from typing import Any

import marshmallow as ma

from analytics.boards import spaces
from app.api.blueprint import Blueprint, Schema, SliceIn
from app.http import paging
from app.http.auth import current_actor
from app.http.rights import May, requires
from app.http.transactions import actor_tx

blueprint = Blueprint("spaces", __name__, url_prefix="/api/v1/spaces", description="Spaces")


class SpaceFields(Schema):
    space = ma.fields.String()
    pages = ma.fields.Integer()
    public_pages = ma.fields.Integer()


SpaceOut = SpaceFields.from_dict({name: ma.fields.Integer() for name in spaces.COUNTS}, name="SpaceOut")


class SpacesOut(Schema):
    items = ma.fields.List(ma.fields.Nested(SpaceOut))
    next_cursor = ma.fields.String(allow_none=True)


@blueprint.get("")
@requires(May.READ_BOARDS)
@blueprint.arguments(SliceIn, location="query")
@blueprint.response(200, SpacesOut)
def list_spaces(query: dict[str, Any]) -> Any:
    """The spaces with pages that the caller may see, by key, with the counts of the last 7 days."""
    asked = paging.slice_of(query, space=str)
    with actor_tx() as tx:
        public_only = current_actor().public_only
        rows = spaces.list_(tx, after=asked.after, limit=asked.fetch, public_only=public_only)
    return asked.answer(rows)
