"""A request for every route that succeeds: for tests that cut the connections of what answers it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any
from uuid import uuid4

from flask.testing import FlaskClient

from analytics.quests import rewards
from analytics.quests.people import Person
from analytics.quests.rewards import Reward
from analytics.quests.states import Status
from app.ui.assets import assets
from tenants import settings as tenant_settings
from tenants import users
from tenants.db import tenant_tx, utcnow
from tenants.users import Role
from tests.analytics.quests.questing import OFFER, WORK, World
from tests.beacons import FIREFOX, ORIGIN, send
from tests.people import PASSWORD, Caller, client_of, log_in, static_token_of, user_of

# So many attempts reach no limit.
SETTINGS: dict[str, Any] = {
    "signup_open": True,
    "limits": {"score_updates_per_minute": 1_000},
    "quests": {"quests_per_day": 1_000, "xp_per_day": 1_000_000, "open_claims": 100, "attestations_per_day": 1_000},
}


@dataclass
class Scene:
    """A tenant with a little of everything, and who may do everything there."""

    http: FlaskClient
    tenant: str
    app: Caller = field(init=False)
    admin: Caller = field(init=False)
    member: Caller = field(init=False)
    creator: Caller = field(init=False)
    key: str = field(init=False)
    world: World = field(init=False)
    _numbers: count = field(default_factory=count)  # type: ignore[type-arg]

    def __post_init__(self) -> None:
        with tenant_tx(self.tenant) as tx:
            tenant_settings.change(tx, SETTINGS, now=utcnow())
        self.app = client_of(self.http, self.tenant)
        self.admin = user_of(self.http, self.tenant, role=Role.ADMIN)
        self.member, self.creator = (user_of(self.http, self.tenant) for _ in range(2))
        with tenant_tx(self.tenant) as tx:
            self.world = World(self.tenant, tenant_settings.read(tx)[0].quests)
        self.key = self.app("POST", "/api/v1/keys", json={"origins": [ORIGIN]}).get_json()["key"]
        self.page("home")
        assert self.app("PUT", "/api/v1/actions/catalog/post", json={"points": 10}).status_code == 200
        for visitor in range(3):
            send(self.http, self.key, address=f"10.1.0.{visitor}")

    def new(self, what: str = "x") -> str:
        """A name that nothing has yet."""
        return f"{what}-{next(self._numbers)}"

    def page(self, name: str | None = None) -> str:
        name = name or self.new("page")
        body = {"space": "s", "title": "T", "url": f"https://wiki.example/{name}", "visibility": "public"}
        assert self.app("PUT", f"/api/v1/pages/{name}", json=body).status_code == 201
        return name

    def user(self) -> Caller:
        return user_of(self.http, self.tenant)

    def person(self, caller: Caller) -> Person:
        with tenant_tx(self.tenant) as tx:
            user_id = users.get(tx, caller.id).id  # type: ignore[arg-type]
        return Person(user_id, is_admin=False, by=f"user:{user_id}")

    def quest(self, status: Status) -> str:
        """A quest of `creator`, in this state by `member`."""
        return str(self.world.at(status, self.person(self.creator), self.person(self.member)))

    def action_token(self) -> str:
        body = {"user": self.member.id, "action_type": "post"}
        return str(self.app("POST", "/api/v1/action-tokens", json=body).get_json()["action_token"])

    def unknown_address(self) -> str:
        url = f"https://wiki.example/unknown/{self.new()}"
        assert send(self.http, self.key, f'{{"url": "{url}"}}').get_json()["rejected"]
        return url

    def flag(self) -> str:
        self.app("PATCH", "/api/v1/settings", json={"integrity": {"points_per_hour": 1}})
        user = self.user()
        body = {"user": user.id, "action_type": "post"}
        token = self.app("POST", "/api/v1/action-tokens", json=body).get_json()["action_token"]
        assert user("PATCH", "/api/v1/scores", json={"action_token": token}).status_code == 200
        return str(self.app("GET", "/api/v1/integrity/flags").get_json()["items"][0]["id"])

    def owed(self) -> str:
        creator, performer = self.world.person(), self.world.person()
        done = self.world.get(self.world.done(creator, performer, creator))
        with tenant_tx(self.tenant) as tx:
            rewards._owe(tx, done, Reward.XP, RuntimeError("the test's own"), now=utcnow())
        with tenant_tx(self.tenant) as tx:
            return str(rewards.list_(tx, status=None, after=None, limit=1)[0].id)

    def template(self) -> str:
        return str(self.admin("POST", "/api/v1/quest-templates", json=template_of(self)).get_json()["id"])


@dataclass(frozen=True)
class Call:
    """A request, and who sends it: nobody in particular without a token."""

    path: str
    by: Caller | None = None
    options: dict[str, Any] = field(default_factory=dict)


Case = Callable[[Scene], Call]


def template_of(scene: Scene) -> dict[str, Any]:
    return {**OFFER, "title": scene.new("Template")}


def at(path: str, by: str | None = None, **options: Any) -> Case:
    """A request that always names the same things."""
    return lambda scene: Call(path, getattr(scene, by) if by else None, options)


def step(name: str, status: Status, by: str, **body: Any) -> Case:
    """A step of a quest in this state."""
    return lambda scene: Call(f"/api/v1/quests/{scene.quest(status)}/{name}", getattr(scene, by), {"json": body})


def own_user(path: str, **options: Any) -> Case:
    """A request by a user of its own."""

    def call(scene: Scene) -> Call:
        user = scene.user()
        return Call(path.format(user=user), user, options)

    return call


def login(path: str, **headers: str) -> Case:
    def call(scene: Scene) -> Call:
        name = scene.new("login").replace("-", "_")
        user_of(scene.http, scene.tenant, username=name)
        return Call(
            path, None, {"json": {"tenant": scene.tenant, "username": name, "password": PASSWORD}, "headers": headers}
        )

    return call


def registration(scene: Scene) -> Call:
    name = scene.new("user").replace("-", "_")
    body = {"tenant": scene.tenant, "username": name, "email": f"{name}@example.org", "password": PASSWORD}
    return Call("/api/v1/auth/register", None, {"json": body})


def reset(scene: Scene) -> Call:
    user = scene.user()
    token = scene.app("POST", f"/api/v1/users/{user.id}/password-reset").get_json()["reset_token"]
    return Call("/api/v1/auth/reset", None, {"json": {"reset_token": token, "password": "another long password"}})


def oauth_revocation(scene: Scene) -> Call:
    client = client_of(scene.http, scene.tenant)
    return Call("/oauth/revoke", None, {"data": {"token": client.token}, "auth": (client.id, client.secret)})


def beacon(scene: Scene) -> Call:
    options = {
        "data": '{"page": "home"}',
        "content_type": "text/plain",
        "headers": {"Origin": ORIGIN, "User-Agent": f"{FIREFOX} {scene.new()}"},
    }
    return Call(f"/api/v1/beacon?key={scene.key}", None, options)


def second_session(scene: Scene) -> Call:
    name = scene.new("twice").replace("-", "_")
    user = user_of(scene.http, scene.tenant, username=name)
    log_in(scene.http, scene.tenant, name)
    items = user("GET", "/api/v1/auth/sessions").get_json()["items"]
    (other,) = [session["id"] for session in items if not session["current"]]
    return Call(f"/api/v1/auth/sessions/{other}", user)


def session_of_a_user(scene: Scene) -> Call:
    user = scene.user()
    (session,) = scene.admin("GET", f"/api/v1/users/{user.id}/sessions").get_json()["items"]
    return Call(f"/api/v1/users/{user.id}/sessions/{session['id']}", scene.admin)


def action(scene: Scene) -> dict[str, Any]:
    return {"actionId": str(uuid4()), "actionType": "post", "timestamp": utcnow().isoformat()}


def events(scene: Scene) -> Call:
    sent = [
        {"type": "view", "page": "home", "id": str(uuid4())},
        {"type": "like", "page": "home", "user": scene.new("u"), "id": str(uuid4())},
        {"type": "action", "user": scene.new("u"), "action_type": "post", "id": str(uuid4())},
    ]
    return Call("/api/v1/events", scene.app, {"json": {"events": sent}})


def liked(path: str, by: str) -> Case:
    """A like that is taken back."""

    def call(scene: Scene) -> Call:
        page, user = scene.page(), scene.new("u")
        if by == "member":
            assert scene.member("PUT", f"/api/v1/pages/{page}/like").status_code == 200
        else:
            assert scene.app("PUT", f"/api/v1/pages/{page}/likes/{user}").status_code == 200
        return Call(path.format(page=page, user=user), getattr(scene, by))

    return call


def template_change(scene: Scene) -> Call:
    return Call(f"/api/v1/quest-templates/{scene.template()}", scene.admin, {"json": template_of(scene)})


def category(scene: Scene) -> str:
    tag = scene.new("tag")
    assert scene.admin("PUT", f"/api/v1/quest-categories/{tag}", json={"name": tag}).status_code == 204
    return tag


def catalogued(scene: Scene) -> str:
    name = scene.new("action")
    assert scene.app("PUT", f"/api/v1/actions/catalog/{name}", json={"points": 5}).status_code == 200
    return name


PAGE = {"space": "s", "title": "A title", "url": "/somewhere"}
WEIGHTS = {"likes": 2, "views": 1}
V1 = "/api/v1"

CASES: dict[str, Case] = {
    f"GET {V1}/me": at(f"{V1}/me", "member"),
    f"POST {V1}/auth/logout": own_user(f"{V1}/auth/logout"),
    f"GET {V1}/auth/sessions": at(f"{V1}/auth/sessions", "member"),
    f"DELETE {V1}/auth/sessions/<uuid:session_id>": second_session,
    f"POST {V1}/auth/password": own_user(f"{V1}/auth/password", json={"old": PASSWORD, "new": "another long one"}),
    f"GET {V1}/users": at(f"{V1}/users?q=user", "app"),
    f"GET {V1}/users/<user>": at(f"{V1}/users/me", "member"),
    f"PUT {V1}/users/<user>": lambda s: Call(
        f"{V1}/users/ext:{s.new('u')}", s.app, {"json": {"display_name": "A name"}}
    ),
    f"PATCH {V1}/users/<user>": lambda s: Call(
        f"{V1}/users/{s.user().id}", s.admin, {"json": {"suspended": True, "segment": s.new("seg")}}
    ),
    f"POST {V1}/users/<user>/password-reset": lambda s: Call(f"{V1}/users/{s.user().id}/password-reset", s.app),
    f"GET {V1}/users/<user>/sessions": lambda s: Call(f"{V1}/users/{s.user().id}/sessions", s.admin),
    f"DELETE {V1}/users/<user>/sessions": lambda s: Call(f"{V1}/users/{s.user().id}/sessions", s.admin),
    f"DELETE {V1}/users/<user>/sessions/<uuid:session_id>": session_of_a_user,
    f"GET {V1}/users/<user>/ledger": at(f"{V1}/users/me/ledger", "member"),
    f"GET {V1}/users/<user>/actions": at(f"{V1}/users/me/actions", "member"),
    f"GET {V1}/users/<user>/likes": at(f"{V1}/users/me/likes", "member"),
    f"GET {V1}/users/<user>/export": at(f"{V1}/users/me/export", "member"),
    f"DELETE {V1}/users/<user>": lambda s: Call(f"{V1}/users/{s.user().id}", s.admin),
    f"GET {V1}/actions": at(f"{V1}/actions", "app"),
    f"POST {V1}/users/<user>/corrections": lambda s: Call(
        f"{V1}/users/{s.member.id}/corrections",
        s.admin,
        {"json": {"account": "points", "delta": 5, "reason": "because"}},
    ),
    f"GET {V1}/actions/catalog": at(f"{V1}/actions/catalog", "app"),
    f"PUT {V1}/actions/catalog/<action_type>": lambda s: Call(
        f"{V1}/actions/catalog/{s.new('action')}", s.app, {"json": {"points": 5}}
    ),
    f"DELETE {V1}/actions/catalog/<action_type>": lambda s: Call(f"{V1}/actions/catalog/{catalogued(s)}", s.app),
    f"POST {V1}/action-tokens": lambda s: Call(
        f"{V1}/action-tokens", s.app, {"json": {"user": s.member.id, "action_type": "post"}}
    ),
    f"POST {V1}/scores/update": lambda s: Call(f"{V1}/scores/update", s.member, {"json": action(s)}),
    f"PATCH {V1}/scores": lambda s: Call(f"{V1}/scores", s.member, {"json": {"action_token": s.action_token()}}),
    f"GET {V1}/integrity/flags": at(f"{V1}/integrity/flags", "app"),
    f"POST {V1}/live/tickets": at(f"{V1}/live/tickets", "member"),
    f"GET {V1}/overview": at(f"{V1}/overview", "app"),
    "POST /dashboard/logout": own_user("/dashboard/logout"),
    f"POST {V1}/integrity/flags/<uuid:flag_id>/resolve": lambda s: Call(
        f"{V1}/integrity/flags/{s.flag()}/resolve", s.app, {"json": {"action": "reverse"}}
    ),
    f"GET {V1}/clients": at(f"{V1}/clients", "app"),
    f"POST {V1}/clients": at(f"{V1}/clients", "app", json={"name": "x", "scopes": ["admin"]}),
    f"POST {V1}/clients/<client_id>/rotate": lambda s: Call(
        f"{V1}/clients/{client_of(s.http, s.tenant).id}/rotate", s.app
    ),
    f"DELETE {V1}/clients/<client_id>": lambda s: Call(f"{V1}/clients/{client_of(s.http, s.tenant).id}", s.app),
    f"GET {V1}/keys": at(f"{V1}/keys", "app"),
    f"POST {V1}/keys": at(f"{V1}/keys", "app", json={"origins": [ORIGIN]}),
    f"DELETE {V1}/keys/<key_id>": lambda s: Call(f"{V1}/keys/{new_key(s)}", s.app),
    f"POST {V1}/keys/<key_id>/signing-secret": lambda s: Call(f"{V1}/keys/{new_key(s)}/signing-secret", s.app),
    f"GET {V1}/tokens": at(f"{V1}/tokens", "app"),
    f"POST {V1}/tokens": at(f"{V1}/tokens", "app", json={"name": "x", "scopes": ["admin"]}),
    f"DELETE {V1}/tokens/<token_id>": lambda s: Call(f"{V1}/tokens/{static_token_of(s.app).id}", s.app),
    f"GET {V1}/settings": at(f"{V1}/settings", "app"),
    f"PATCH {V1}/settings": at(f"{V1}/settings", "app", json={"limits": {"live_connections": 77}}),
    f"PUT {V1}/pages/<external_id>": lambda s: Call(
        f"{V1}/pages/{s.new('page')}", s.app, {"json": {**PAGE, "url": f"/{s.new()}", "owner": s.new("owner")}}
    ),
    f"GET {V1}/pages/<external_id>": at(f"{V1}/pages/home", "app"),
    f"GET {V1}/pages": at(f"{V1}/pages", "app"),
    f"POST {V1}/pages": lambda s: Call(
        f"{V1}/pages",
        s.app,
        {"json": {"pages": [{**PAGE, "url": f"/{s.new()}", "external_id": s.new("page")} for _ in range(3)]}},
    ),
    f"DELETE {V1}/pages/<external_id>": lambda s: Call(f"{V1}/pages/{s.page()}", s.app),
    f"PUT {V1}/pages/<external_id>/like": lambda s: Call(f"{V1}/pages/{s.page()}/like", s.member),
    f"DELETE {V1}/pages/<external_id>/like": liked(f"{V1}/pages/{{page}}/like", "member"),
    f"GET {V1}/pages/<external_id>/like": at(f"{V1}/pages/home/like", "member"),
    f"GET {V1}/pages/<external_id>/likes": at(f"{V1}/pages/home/likes", "app"),
    f"PUT {V1}/pages/<external_id>/likes/<user>": lambda s: Call(f"{V1}/pages/home/likes/{s.new('u')}", s.app),
    f"DELETE {V1}/pages/<external_id>/likes/<user>": liked(f"{V1}/pages/{{page}}/likes/{{user}}", "app"),
    f"POST {V1}/pages/<external_id>/views": lambda s: Call(
        f"{V1}/pages/home/views", s.app, {"json": {"id": str(uuid4())}}
    ),
    f"GET {V1}/pages/<external_id>/stats": at(f"{V1}/pages/home/stats", "app"),
    f"GET {V1}/pages/<external_id>/series": at(f"{V1}/pages/home/series", "app"),
    f"GET {V1}/spaces": at(f"{V1}/spaces", "app"),
    f"GET {V1}/leaderboards": at(f"{V1}/leaderboards?explain=true", "app"),
    f"GET {V1}/leaderboards/rank": at(f"{V1}/leaderboards/rank?member=home&around=2", "app"),
    f"GET {V1}/leaderboards/export.csv": at(f"{V1}/leaderboards/export.csv", "app"),
    f"GET {V1}/settings/weights": at(f"{V1}/settings/weights", "app"),
    f"PUT {V1}/settings/weights": at(f"{V1}/settings/weights", "app", json=WEIGHTS),
    f"POST {V1}/settings/weights/preview": at(f"{V1}/settings/weights/preview", "app", json=WEIGHTS),
    f"POST {V1}/events": events,
    f"GET {V1}/ingest/rejections": at(f"{V1}/ingest/rejections", "app"),
    f"GET {V1}/ingest/unknown": at(f"{V1}/ingest/unknown", "app"),
    f"POST {V1}/ingest/unknown/pages": lambda s: Call(
        f"{V1}/ingest/unknown/pages", s.app, {"json": {"url": s.unknown_address()}}
    ),
    f"DELETE {V1}/ingest/unknown": lambda s: Call(
        f"{V1}/ingest/unknown", s.app, {"query_string": {"url": s.unknown_address()}}
    ),
    f"POST {V1}/quests": lambda s: Call(f"{V1}/quests", s.admin, {"json": OFFER}),
    f"GET {V1}/quests": at(f"{V1}/quests", "member"),
    f"GET {V1}/users/<user>/quests": at(f"{V1}/users/me/quests", "member"),
    f"GET {V1}/quests/<uuid:quest_id>": lambda s: Call(f"{V1}/quests/{s.quest(Status.COMPLETE)}", s.member),
    f"POST {V1}/quests/<uuid:quest_id>/claim": step("claim", Status.OPEN, "member"),
    f"POST {V1}/quests/<uuid:quest_id>/release": step("release", Status.CLAIMED, "member"),
    f"POST {V1}/quests/<uuid:quest_id>/submit": step("submit", Status.CLAIMED, "member", submission=WORK),
    f"POST {V1}/quests/<uuid:quest_id>/withdraw": step("withdraw", Status.PENDING_REVIEW, "member"),
    f"POST {V1}/quests/<uuid:quest_id>/attestations": step("attestations", Status.PENDING_REVIEW, "creator", rating=5),
    f"POST {V1}/quests/<uuid:quest_id>/dispute": step(
        "dispute", Status.PENDING_REVIEW, "creator", reason="not what was asked for"
    ),
    f"POST {V1}/quests/<uuid:quest_id>/resolve": step(
        "resolve", Status.DISPUTED, "admin", to="COMPLETE", reason="it is"
    ),
    f"POST {V1}/quests/<uuid:quest_id>/cancel": step("cancel", Status.OPEN, "creator"),
    f"GET {V1}/rewards/failed": at(f"{V1}/rewards/failed", "admin"),
    f"POST {V1}/rewards/failed/<uuid:reward_id>/retry": lambda s: Call(
        f"{V1}/rewards/failed/{s.owed()}/retry", s.admin
    ),
    f"GET {V1}/quest-templates": at(f"{V1}/quest-templates", "admin"),
    f"POST {V1}/quest-templates": lambda s: Call(f"{V1}/quest-templates", s.admin, {"json": template_of(s)}),
    f"GET {V1}/quest-templates/<uuid:template_id>": lambda s: Call(f"{V1}/quest-templates/{s.template()}", s.admin),
    f"PUT {V1}/quest-templates/<uuid:template_id>": template_change,
    f"DELETE {V1}/quest-templates/<uuid:template_id>": lambda s: Call(f"{V1}/quest-templates/{s.template()}", s.admin),
    f"GET {V1}/quest-categories": at(f"{V1}/quest-categories", "admin"),
    f"PUT {V1}/quest-categories/<tag>": lambda s: Call(
        f"{V1}/quest-categories/{s.new('tag')}", s.admin, {"json": {"name": "A name"}}
    ),
    f"DELETE {V1}/quest-categories/<tag>": lambda s: Call(f"{V1}/quest-categories/{category(s)}", s.admin),
    "POST /oauth/token": lambda s: Call(
        "/oauth/token", None, {"data": {"grant_type": "client_credentials"}, "auth": (s.app.id, s.app.secret)}
    ),
    "POST /oauth/revoke": oauth_revocation,
    "GET /.well-known/jwks.json": at("/.well-known/jwks.json"),
    "GET /.well-known/oauth-authorization-server": at("/.well-known/oauth-authorization-server"),
    f"POST {V1}/auth/register": registration,
    f"POST {V1}/auth/login": login(f"{V1}/auth/login"),
    f"POST {V1}/auth/refresh": lambda s: Call(
        f"{V1}/auth/refresh", None, {"json": {"refresh_token": s.user().refresh_token}}
    ),
    f"POST {V1}/auth/reset": reset,
    f"POST {V1}/beacon": beacon,
    "GET /plaudit.js": at("/plaudit.js"),
    "GET /embed/popular": lambda s: Call(f"/embed/popular?key={s.key}"),
    "GET /embed/popular.js": at("/embed/popular.js"),
    "GET /embed/badge/<external_id>.svg": lambda s: Call(f"/embed/badge/home.svg?key={s.key}"),
    "GET /": at("/"),
    "GET /dashboard": at("/dashboard"),
    "GET /dashboard/<path:_view>": at("/dashboard/pages"),
    "GET /assets/<version>/<path:name>": lambda _: Call(f"/assets/{assets().version}/embed/popular.js"),
    "POST /dashboard/login": login("/dashboard/login", **{"X-Plaudit-Dashboard": "1"}),
    "GET /static/<path:filename>": at("/static/nothing"),
    "GET /api/openapi.json": at("/api/openapi.json"),
    "GET /api/docs": at("/api/docs"),
    "GET /ws/leaderboards": at("/ws/leaderboards"),
    "GET /ws/scoreboard/top10": at("/ws/scoreboard/top10"),
    f"GET {V1}/live/events": at(f"{V1}/live/events"),
    "GET /health/live": at("/health/live"),
    "GET /health/ready": at("/health/ready"),
    "GET /metrics": at("/metrics"),
}


def new_key(scene: Scene) -> str:
    return str(scene.app("POST", "/api/v1/keys", json={"origins": [ORIGIN]}).get_json()["key"])
