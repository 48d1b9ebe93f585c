"""The dashboard: a page, its files, and its sign-in.

The page is the same for everybody and knows nothing; its scripts ask the API, with a cookie that no script can read.
Nothing is loaded from anywhere else, and the policy says so to the browser.
"""

import gzip
import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any
from urllib.parse import urlsplit

from flask import Blueprint as FlaskBlueprint
from flask import Flask, Response, current_app, make_response, redirect, render_template, request

from app.api.blueprint import Blueprint, PlauditApi
from app.api.logins import LoginIn, end_own_session, sign_in
from app.auth import May, cookie_name, public, require_same_origin, requires
from app.settings import Settings
from tenants import sessions
from tenants.errors import NotFound

pages = FlaskBlueprint("dashboard", __name__)
blueprint = Blueprint("sessions", __name__, url_prefix="/dashboard", description="Signing in to the dashboard")

TYPES = {"js": "text/javascript", "css": "text/css", "svg": "image/svg+xml", "json": "application/manifest+json"}
FOR_EVER = "public, max-age=31536000, immutable"


def install(app: Flask, api: PlauditApi) -> None:
    app.register_blueprint(pages)
    api.register_blueprint(blueprint)


@pages.get("/")
@public
def home() -> Any:
    return redirect("/dashboard", 302)


@pages.get("/dashboard")
@pages.get("/dashboard/<path:_view>")
@public
def page(_view: str = "") -> Response:
    """One page for every view: which, its scripts find in the address."""
    scripts = [name for name in sorted(assets().files) if name.endswith(".js")]
    was_here = cookie_name() in request.cookies  # spares whoever was not a question that fails
    told = {"version": assets().version, "scripts": scripts, "was_here": was_here}
    shown = make_response(render_template("dashboard.html", **told))
    shown.headers["Content-Security-Policy"] = policy()
    shown.headers["Cache-Control"] = "no-cache"
    return shown


@pages.get("/assets/<version>/<path:name>")
@public
def asset(version: str, name: str) -> Response:
    """A file of the dashboard. Its address changes with its contents, so it is kept for ever."""
    known = assets()
    found = known.files.get(name)
    if found is None:
        raise NotFound
    zipped = request.accept_encodings.quality("gzip") > 0
    response = Response(found.zipped if zipped else found.plain, content_type=found.content_type)
    response.headers["Vary"] = "Accept-Encoding"
    response.headers["Cache-Control"] = FOR_EVER if version == known.version else "no-cache"
    if zipped:
        response.headers["Content-Encoding"] = "gzip"
    return response


@blueprint.post("/login")
@public
@blueprint.arguments(LoginIn)
@blueprint.response(204)
def login(body: dict[str, str]) -> Response:
    """Sign in to the dashboard: the session is in a cookie that scripts cannot read."""
    require_same_origin()
    _user, cookie = sign_in(body, sessions.start_in_browser)
    response = make_response("", 204)
    _set(response, cookie.value, int(sessions.SESSION_LIVES.total_seconds()))
    return response


@blueprint.post("/logout")
@requires(May.KEEP_OWN_SESSIONS)
@blueprint.response(204)
def logout() -> Response:
    """Sign out: the session ends everywhere, and its sockets with it."""
    end_own_session()
    response = make_response("", 204)
    _set(response, "", 0)
    return response


def policy() -> str:
    """Only our own files, and only our own API and sockets."""
    settings: Settings = current_app.config["SETTINGS"]
    live = urlsplit(settings.live_url)
    secure = live.scheme in {"https", "wss"}
    sockets = f"{'wss' if secure else 'ws'}://{live.netloc} {'https' if secure else 'http'}://{live.netloc}"
    return (
        f"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self' {sockets}; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    )


def _set(response: Response, value: str, max_age: int) -> None:
    settings: Settings = current_app.config["SETTINGS"]
    https = settings.public_url.startswith("https://")
    response.set_cookie(cookie_name(), value, max_age=max_age, path="/", secure=https, httponly=True, samesite="Strict")


@dataclass(frozen=True)
class Asset:
    plain: bytes
    zipped: bytes
    content_type: str


@dataclass(frozen=True)
class Assets:
    files: dict[str, Asset]
    version: str


@cache
def assets() -> Assets:
    """The dashboard's files, read and compressed once."""
    found = {}
    for file in sorted(files("app").joinpath("static", "dashboard").iterdir(), key=lambda one: one.name):
        suffix = file.name.rpartition(".")[2]
        if suffix in TYPES:
            plain = file.read_bytes()
            found[file.name] = Asset(plain, gzip.compress(plain, 9, mtime=0), f"{TYPES[suffix]}; charset=utf-8")
    digest = hashlib.blake2b(digest_size=8)
    for name, one in found.items():
        digest.update(name.encode() + b"\0" + one.plain)
    return Assets(found, digest.hexdigest())
