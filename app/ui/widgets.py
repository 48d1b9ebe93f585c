"""Widgets for a tenant's own pages: a list of popular pages, and a badge, with a publishable key.

They show only public pages, and any cache may store them for a minute. The list is a page of ours in a frame, which
only the key's origins may show. Errors are shown in the widget itself, where the tenant's developers see them.
"""

import re
from collections.abc import Callable
from typing import Any, TypeVar

import marshmallow as ma
from flask import Response, render_template, request

from analytics.boards import page_numbers, reading
from analytics.boards.reading import ShownBoard
from analytics.ingest import pages
from analytics.ingest.pages import PageNotFound
from analytics.metrics import SCORE, VIEWS, page_metrics
from analytics.windows import Window
from app.api.blueprint import Blueprint, Schema, load, metric_field
from app.http import errors
from app.http.answer_cache import OF_ANY_VERSION, Answer
from app.http.auth import current_key, current_reader
from app.http.boards import READS_PER_MINUTE, board_for, limit_reader, rows_as_json
from app.http.conditional import conditional, if_changed
from app.http.edge import quiet
from app.http.rights import public, publishable_key
from app.http.services import services
from app.ui.assets import assets, serve
from tenants.db import tenant_tx, utcnow
from tenants.errors import DomainError, Invalid

blueprint = Blueprint("widgets", __name__, url_prefix="/embed", description="Widgets for a tenant's own pages")

View = TypeVar("View", bound=Callable[..., Any])

FOR_A_MINUTE = "public, max-age=60, stale-while-revalidate=600"
FOR_AN_HOUR = "public, max-age=3600"
# Characters that XML cannot contain, even escaped.
NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
CHARACTER_PX = 6.6


class PopularIn(Schema):
    key = ma.fields.String()
    space = ma.fields.String(validate=ma.validate.Length(1, 64))
    window = ma.fields.Enum(Window, by_value=True, load_default=Window.WEEK)
    metric = metric_field(page_metrics(), load_default=SCORE.name)
    limit = ma.fields.Integer(load_default=5, validate=ma.validate.Range(1, 20))
    title = ma.fields.String(load_default="Popular", validate=ma.validate.Length(0, 80))
    base = ma.fields.String(validate=ma.validate.Length(1, 300), metadata={"description": "where relative links go"})
    theme = ma.fields.String(load_default="light", validate=ma.validate.OneOf(["light", "dark", "auto"]))


class BadgeIn(Schema):
    key = ma.fields.String()
    window = ma.fields.Enum(Window, by_value=True, load_default=Window.ALL)
    metric = metric_field(page_metrics(), load_default=VIEWS.name)
    label = ma.fields.String(validate=ma.validate.Length(1, 40))


def widget(query: type[Schema], content_type: str) -> Callable[[View], View]:
    """Document a widget: `load` reads its query, and whatever it refuses it shows in its own form."""
    shown = {content_type: {"schema": {"type": "string"}}}
    doc = blueprint.doc(
        parameters=[{"in": "query", "schema": query}],
        security=[{"key_in_query": []}],
        responses={"4XX": {"description": "Why it is not shown", "content": shown}},
    )
    answer = blueprint.response(200, {"type": "string"}, content_type=content_type)
    return lambda view: doc(answer(view))


@blueprint.before_request
def ignore_key_header() -> None:
    """The key must be in the address: caches store answers by their address."""
    request.environ.pop("HTTP_X_PLAUDIT_KEY", None)


@blueprint.get("/popular")
@quiet
@publishable_key
@conditional("If-None-Match")
@widget(PopularIn, "text/html")
def popular() -> Response:
    """A list of the most popular public pages, to be shown in a frame."""
    query, reader = load(PopularIn(), request.args), current_reader()
    scope = f"public:{query['space']}" if "space" in query else "public"
    board = board_for(reader, {"scope": scope, "window": query["window"], "metric": query["metric"]})
    base = query.get("base")
    if base is not None and base not in current_key().origins:
        raise Invalid.field("base", "one of the key's origins")

    def build(at_least: int) -> Answer:
        limit_reader(reader, "boards", READS_PER_MINUTE)
        top = reading.read(board, reading.Top(query["limit"]), now=utcnow(), at_least=at_least)
        return Answer.of(_list(top, query, base).encode(), version=OF_ANY_VERSION, is_verified=top.is_newest)

    cache = services().boards
    shown = tuple(query.get(name) for name in ("limit", "title", "base", "theme"))
    response = if_changed(cache.get(board, ("widget", board, current_key().key_id, shown), build))
    return _page(response, ancestors=" ".join(sorted(current_key().origins)))


@blueprint.get("/popular.js")
@quiet
@public
@blueprint.response(200, {"type": "string"}, content_type="text/javascript")
def popular_script() -> Response:
    """The script that puts the list after its own tag."""
    return serve("embed/popular.js", cache_control=FOR_AN_HOUR)


@blueprint.get("/badge/<external_id>.svg")
@quiet
@publishable_key
@widget(BadgeIn, "image/svg+xml")
def badge(external_id: str) -> Response:
    """How often a public page was viewed or liked, as a small image."""
    query, now = load(BadgeIn(), request.args), utcnow()
    limit_reader(current_reader(), "boards", READS_PER_MINUTE)
    tenant_id = current_key().tenant_id
    with tenant_tx(tenant_id) as tx:
        page = pages.get(tx, external_id, public_only=True)
    numbers = page_numbers.stats(tenant_id, external_id, public_only=True, now=now)
    if numbers is None:
        raise PageNotFound(external_id)
    value = numbers[query["metric"]][query["window"].value]
    over = "" if query["window"] is Window.ALL else f", {query['window'].label.lower()}"
    label = query.get("label") or f"{query['metric']}{over}"
    response = _image(label, _compact(value), title=f"{page.title}: {value:,} {query['metric']}{over}")
    response.headers["Cache-Control"] = FOR_A_MINUTE
    return response


@blueprint.errorhandler(DomainError)
def refuse(error: DomainError) -> Response:
    """Show the error in the form of the widget: an image or a page."""
    answer = errors.answer_domain_error(error)
    if request.endpoint == "widgets.badge":
        shown = _image("plaudit", "not found" if answer.status_code == 404 else "not shown", title=error.detail)
    else:
        text = render_template("popular.html", version=assets().version, theme="light", problem=error.detail)
        shown = _page(Response(text), ancestors="*")
    shown.status_code = answer.status_code
    shown.headers["Cache-Control"] = "no-store"
    for name in ("Retry-After", "RateLimit", "RateLimit-Policy"):
        if name in answer.headers:
            shown.headers[name] = answer.headers[name]
    return shown


def _list(top: ShownBoard, query: dict[str, Any], base: str | None) -> str:
    rows = rows_as_json(top, fields=())
    shown = [
        {
            "title": row["page"]["title"] or row["page"]["external_id"],
            "url": _link(row["page"]["url"], base),
            "value": _compact(row["value"]),
            "share": max(1, round(100 * row["value"] / rows[0]["value"])),
        }
        for row in rows
        if row["page"] is not None
    ]
    context = {"rows": shown, "title": query["title"], "metric": query["metric"], "theme": query["theme"]}
    return render_template("popular.html", version=assets().version, window=query["window"].label.lower(), **context)


def _link(url: str, base: str | None) -> str | None:
    """The address that a row links to, if it is an http address (older rows may have others)."""
    if not pages.is_url(url):
        return None
    if re.match(r"https?://", url, re.IGNORECASE):
        return url
    if base is not None and url.startswith("/"):
        return base + url
    return None


def _page(response: Response, *, ancestors: str) -> Response:
    response.content_type = "text/html; charset=utf-8"
    response.headers["Cache-Control"] = FOR_A_MINUTE
    response.headers.pop("Vary", None)
    policy = "default-src 'none'; style-src 'self'; script-src 'self'; base-uri 'none'; frame-ancestors "
    response.headers["Content-Security-Policy"] = policy + (ancestors or "'none'")
    return response


def _image(label: str, value: str, *, title: str) -> Response:
    label, value, title = (NOT_IN_XML.sub("", text) for text in (label, value, title))
    left, right = (round(len(text) * CHARACTER_PX + 12) for text in (label, value))
    context = {"label": label, "value": value, "title": title, "left": left, "right": right}
    response = Response(render_template("badge.svg", **context), content_type="image/svg+xml; charset=utf-8")
    response.headers["Content-Security-Policy"] = "default-src 'none'; sandbox"
    return response


def _compact(value: float) -> str:
    for size, unit in ((1_000_000_000, "G"), (1_000_000, "M"), (10_000, "k")):
        if value >= size:
            return f"{value / (1_000 if unit == 'k' else size):.1f}{unit}".replace(".0", "")
    return f"{value:,.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else f"{value:,}"
