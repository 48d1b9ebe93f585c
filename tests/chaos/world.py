"""The tenant that the traffic is about: its pages, users, catalog and credentials, created before the first fault."""

import json
import random
import secrets
from dataclasses import dataclass, field
from typing import Any

import requests

from tests import secrets_seen
from tests.chaos.callers import Token
from tests.chaos.site import NODES, Site
from tests.service import plaudit

TENANT = "chaos"
SPACES = ("eng", "ops", "docs")
PAGES = {f"p{number}": SPACES[number % len(SPACES)] for number in range(12)}
PROBED = {f"probe-{node}": "eng" for node in NODES}
PUBLIC = {page for page in PAGES if int(page[1:]) % 2}
USERS = [f"u{number}" for number in range(40)]
QUESTERS = [f"q{number}" for number in range(8)]
# Users whom an admin suspends and lets act again.
SUSPENDED = [f"s{number}" for number in range(4)]
MEMBERS = [f"member{number}" for number in range(4)]
# Members who log in and out.
VISITORS = [f"visitor{number}" for number in range(2)]
RED = "red"
POINTS = {"read": 3, "share": 7, "token": 20, "capped": 10}
DAILY_CAP = 50
SETTINGS = {
    "limits": {"score_updates_per_minute": 10_000, "live_connections": 1_000},
    "integrity": {"points_per_hour": 100_000_000},
    "quests": {
        "quests_per_day": 10_000,
        "xp_per_day": 100_000_000,
        "open_claims": 1_000,
        "attestations_per_day": 10_000,
    },
}


@dataclass
class World:
    ports: dict[str, int]
    client: Token
    members: dict[str, Token]
    member_ids: dict[str, str]
    passwords: dict[str, str]
    rng: random.Random = field(default_factory=random.Random)


def create(site: Site) -> World:
    """Create the tenant by commands and the API, at node a."""
    ports = {node: site.client_port(node) for node in NODES}
    _command(site, "tenant", "create", TENANT, "--name", "Chaos")
    scopes = "pages:write,events:write,events:backfill,stats:read,users:write,actions:write,quests:write,admin"
    client = _command(site, "client", "create", TENANT, "--scopes", scopes)
    passwords: dict[str, str] = {}
    for name in (*MEMBERS, *VISITORS):
        passwords[name] = _own_password(ports, name, _command(site, "user", "create", TENANT, name)["password"])
    body = {"grant_type": "client_credentials", "client_id": client["client_id"]}
    token = Token(ports, "/oauth/token", {**body, "client_secret": client["client_secret"]})
    members = {name: login(ports, name, passwords[name]) for name in MEMBERS}
    world = World(ports, token, members, {}, passwords)
    _fill(world)
    return world


def _own_password(ports: dict[str, int], name: str, printed: str) -> str:
    """Another password, which the user must choose instead of the printed one."""
    url, chosen = f"http://127.0.0.1:{ports['a']}/api/v1/auth", secrets.token_urlsafe(12)
    secrets_seen.SEEN.add(chosen)
    who = {"tenant": TENANT, "username": name, "password": printed}
    token = requests.post(f"{url}/login", json=who, timeout=30).json()["access_token"]
    headers = {"Authorization": f"Bearer {token}"}
    changed = requests.post(f"{url}/password", json={"old": printed, "new": chosen}, headers=headers, timeout=30)
    assert changed.ok, changed.text
    return chosen


def login(ports: dict[str, int], name: str, password: str) -> Token:
    return Token(ports, "/api/v1/auth/login", {"tenant": TENANT, "username": name, "password": password})


def _command(site: Site, *arguments: str) -> Any:
    done = plaudit(*arguments, "--json", data_dir=site.data_dir)
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    secrets_seen.collect(printed)
    return printed


def _fill(world: World) -> None:
    url = f"http://127.0.0.1:{world.ports['a']}"
    headers = {"Authorization": f"Bearer {world.client.get()}"}

    def ask(method: str, path: str, body: Any = None) -> Any:
        answer = requests.request(method, url + path, json=body, headers=headers, timeout=30)
        assert answer.ok, answer.text
        return answer.json() if answer.content else None

    ask("PATCH", "/api/v1/settings", SETTINGS)
    for page, space in {**PAGES, **PROBED}.items():
        about = {"space": space, "title": page, "url": f"https://chaos.example/{page}"}
        ask("PUT", f"/api/v1/pages/{page}", about | ({"visibility": "public"} if page in PUBLIC else {}))
    for action, points in POINTS.items():
        cap = {"daily_cap": DAILY_CAP} if action == "capped" else {}
        ask("PUT", f"/api/v1/actions/catalog/{action}", {"points": points, **cap})
    for user in (*USERS, *QUESTERS, *SUSPENDED):
        segments = {"segments": [RED]} if int(user[1:]) % 2 else {}
        ask("PUT", f"/api/v1/users/ext:{user}", {"display_name": user.upper(), **segments})
    for name, token in world.members.items():
        answer = requests.get(f"{url}/api/v1/me", headers={"Authorization": f"Bearer {token.get()}"}, timeout=30).json()
        world.member_ids[name] = str(answer.get("id") or answer["user"]["id"])
