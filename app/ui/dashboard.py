"""The dashboard: a page, and its sign-in.

The page is the same for everybody and contains no data; its scripts read the API, with a cookie that no script can
read. Nothing is loaded from other origins, and the content security policy enforces that.
"""

from typing import Any
from urllib.parse import urlsplit

from flask import Blueprint as FlaskBlueprint
from flask import Flask, Response, make_response, redirect, render_template, request

from app.api.blueprint import Blueprint, PlauditApi
from app.api.logins import LoginIn, end_own_session, sign_in
from app.http.auth import cookie_name, require_same_origin
from app.http.edge import quiet
from app.http.rights import May, public, requires
from app.http.services import essentials
from app.ui.assets import assets
from app.ui.labels import dashboard_names
from tenants import sessions

pages = FlaskBlueprint("dashboard", __name__)
# The page has tags of its own for the first two; the admin's part, the quests and some more are loaded on demand.
NOT_PRELOADED = (
    "dashboard/main.js",
    "dashboard/theme.js",
    "dashboard/admin/",
    "dashboard/quest",
    "dashboard/password.js",
)

blueprint = Blueprint("sessions", __name__, url_prefix="/dashboard", description="Signing in to the dashboard")


def install(app: Flask, api: PlauditApi) -> None:
    app.register_blueprint(pages)
    api.register_blueprint(blueprint)


@pages.get("/")
@public
def home() -> Any:
    return redirect("/dashboard", 302)


@pages.get("/dashboard/<path:_view>")
@blueprint.get("")
@quiet
@public
@blueprint.response(200, {"type": "string"}, content_type="text/html")
def page(_view: str = "") -> Response:
    """One page for every view: its scripts read from the address which one to show."""
    scripts = [name for name in assets().scripts("dashboard") if not name.startswith(NOT_PRELOADED)]
    was_here = cookie_name() in request.cookies  # else the scripts skip a request that would fail
    context = {"version": assets().version, "scripts": scripts, "was_here": was_here, "names": dashboard_names()}
    response = make_response(render_template("dashboard.html", **context))
    response.headers["Content-Security-Policy"] = policy()
    response.headers["Cache-Control"] = "no-cache"
    response.headers["Vary"] = "Cookie"
    return response


@blueprint.post("/login")
@public
@blueprint.arguments(LoginIn)
@blueprint.response(204)
def login(body: dict[str, str]) -> Response:
    """Sign in to the dashboard. The session is in a cookie that scripts cannot read."""
    require_same_origin()
    _user, cookie = sign_in(body, sessions.start_in_browser)
    response = make_response("", 204)
    _set_cookie(response, cookie.value, int(sessions.SESSION_TTL.total_seconds()))
    return response


@blueprint.post("/logout")
@requires(May.LOG_OUT)
@blueprint.response(204)
def logout() -> Response:
    """Sign out: ends the session and its sockets."""
    end_own_session()
    response = make_response("", 204)
    _set_cookie(response, "", 0)
    return response


def policy() -> str:
    """The content security policy: only our own files, API and sockets. Pictures of people may be anywhere."""
    settings = essentials().settings
    live = urlsplit(settings.live_url)
    secure = live.scheme in {"https", "wss"}
    sockets = f"{'wss' if secure else 'ws'}://{live.netloc} {'https' if secure else 'http'}://{live.netloc}"
    return (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' https:; "
        f"connect-src 'self' {sockets}; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    )


def _set_cookie(response: Response, value: str, max_age: int) -> None:
    settings = essentials().settings
    https = settings.public_url.startswith("https://")
    response.set_cookie(cookie_name(), value, max_age=max_age, path="/", secure=https, httponly=True, samesite="Lax")
