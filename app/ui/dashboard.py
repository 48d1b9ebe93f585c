"""The dashboard: a page, and its sign-in.

The page is the same for everybody and knows nothing; its scripts ask the API, with a cookie that no script can read.
Nothing is loaded from anywhere else, and the policy says so to the browser.
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
# The page has tags of its own for these two; and few people open the admin's part, so it is loaded when they do.
NOT_PRELOADED = ("dashboard/main.js", "dashboard/theme.js", "dashboard/admin/")

blueprint = Blueprint("sessions", __name__, url_prefix="/dashboard", description="Signing in to the dashboard")


def install(app: Flask, api: PlauditApi) -> None:
    app.register_blueprint(pages)
    api.register_blueprint(blueprint)


@pages.get("/")
@public
def home() -> Any:
    return redirect("/dashboard", 302)


@pages.get("/dashboard")
@pages.get("/dashboard/<path:_view>")
@quiet
@public
def page(_view: str = "") -> Response:
    """One page for every view: which, its scripts find in the address."""
    scripts = [name for name in assets().scripts("dashboard") if not name.startswith(NOT_PRELOADED)]
    was_here = cookie_name() in request.cookies  # spares whoever was not a question that fails
    told = {"version": assets().version, "scripts": scripts, "was_here": was_here, "names": dashboard_names()}
    shown = make_response(render_template("dashboard.html", **told))
    shown.headers["Content-Security-Policy"] = policy()
    shown.headers["Cache-Control"] = "no-cache"
    shown.headers["Vary"] = "Cookie"
    return shown


@blueprint.post("/login")
@public
@blueprint.arguments(LoginIn)
@blueprint.response(204)
def login(body: dict[str, str]) -> Response:
    """Sign in to the dashboard: the session is in a cookie that scripts cannot read."""
    require_same_origin()
    _user, cookie = sign_in(body, sessions.start_in_browser)
    response = make_response("", 204)
    _set(response, cookie.value, int(sessions.SESSION_TTL.total_seconds()))
    return response


@blueprint.post("/logout")
@requires(May.MANAGE_OWN_SESSIONS)
@blueprint.response(204)
def logout() -> Response:
    """Sign out: the session ends everywhere, and its sockets with it."""
    end_own_session()
    response = make_response("", 204)
    _set(response, "", 0)
    return response


def policy() -> str:
    """Only our own files, and only our own API and sockets."""
    settings = essentials().settings
    live = urlsplit(settings.live_url)
    secure = live.scheme in {"https", "wss"}
    sockets = f"{'wss' if secure else 'ws'}://{live.netloc} {'https' if secure else 'http'}://{live.netloc}"
    return (
        f"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self' {sockets}; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    )


def _set(response: Response, value: str, max_age: int) -> None:
    settings = essentials().settings
    https = settings.public_url.startswith("https://")
    response.set_cookie(cookie_name(), value, max_age=max_age, path="/", secure=https, httponly=True, samesite="Lax")
