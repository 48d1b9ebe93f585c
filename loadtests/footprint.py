"""What a load test creates on an instance that others use, and how all of it is removed.

Pages, users and the action have names that start with the run's own prefix. The spaces are the same in every run: a
space that had pages keeps its boards. What a user was paid stays in the ledger, under an id that belongs to nobody, as
after every erasure.
"""

import secrets
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import requests

from loadtests.instance import Instance, Refused

PREFIX = "loadtest"
SCOPES = ("admin", "events:write", "pages:write", "stats:read")
SPACES = 5
PAGES = 100
READERS = 200
POINTS = 5
# What the settings are raised to, where they are lower: a user gets more points here than any would.
RAISED = {"integrity.points_per_hour": 1_000_000_000}
CALLS_AT_ONCE = 8
MAX_ROUNDS_OF_USERS = 500


class Footprint:
    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.prefix = f"{PREFIX}-{secrets.token_hex(4)}"
        self._before: dict[str, int] = {}

    def check(self) -> str:
        """The tenant's id, if the client may do everything that a run and its removal need."""
        caller = self.instance.call("GET", "/api/v1/me")
        if missing := sorted({*SCOPES} - {*caller["scopes"]}):
            raise Refused(f"The client needs the scopes {' '.join(SCOPES)}; it lacks {' '.join(missing)}")
        return str(caller["tenant"])

    def to_raise(self) -> dict[str, tuple[int, int]]:
        """The settings that would be raised: their values, and what they would be."""
        settings = self.instance.call("GET", "/api/v1/settings")
        now = {name: _value(settings, name) for name in RAISED}
        return {name: (now[name], wanted) for name, wanted in RAISED.items() if now[name] < wanted}

    def create(self) -> None:
        raised = self.to_raise()
        self._before = {name: before for name, (before, _) in raised.items()}
        if raised:
            self._change_settings({name: wanted for name, (_, wanted) in raised.items()})
        self.instance.call("PUT", f"/api/v1/actions/catalog/{self.prefix}", json={"points": POINTS})
        _at_once(self._create_page, [*range(PAGES), "lag"])

    def _create_page(self, number: int | str) -> None:
        space = f"{PREFIX}-{number if number == 'lag' else int(number) % SPACES}"
        body = {"space": space, "title": f"Load test {number}", "url": f"/{self.prefix}/{number}"}
        self.instance.call("PUT", f"/api/v1/pages/{self.prefix}-{number}", json=body)

    def remove(self) -> list[str]:
        """Remove everything; returns what could not be, one line each. A step that fails does not stop the others."""
        steps = (self._restore_settings, self._remove_action, self._remove_pages, self._remove_users)
        return [problem for step in steps for problem in self._try(step)]

    def _try(self, step: Callable[[], list[str]]) -> list[str]:
        try:
            return step()
        except (RuntimeError, Refused, requests.RequestException) as error:
            return [f"{step.__name__.strip('_').replace('_', ' ')}: {error}"]

    def _restore_settings(self) -> list[str]:
        if not self._before:
            return []
        settings = self.instance.call("GET", "/api/v1/settings")
        ours = {name for name in self._before if _value(settings, name) == RAISED[name]}
        if ours:
            self._change_settings({name: self._before[name] for name in ours})
        others = {name: before for name, before in self._before.items() if name not in ours}
        changed = {name: before for name, before in others.items() if _value(settings, name) != before}
        return [f"{name} was changed by somebody else meanwhile; it was {before}" for name, before in changed.items()]

    def _remove_action(self) -> list[str]:
        self.instance.call("DELETE", f"/api/v1/actions/catalog/{self.prefix}", expected=(204, 404))
        return []

    def _remove_pages(self) -> list[str]:
        _at_once(self._remove_page, [*range(PAGES), "lag"])
        return []

    def _remove_page(self, number: int | str) -> None:
        self.instance.call("DELETE", f"/api/v1/pages/{self.prefix}-{number}", expected=(204, 404))

    def _remove_users(self) -> list[str]:
        for _ in range(MAX_ROUNDS_OF_USERS):
            path = f"/api/v1/users?limit=100&q={self.prefix}"
            found = [user["id"] for user in self.instance.call("GET", path)["items"]]
            if not found:
                return []
            _at_once(self._remove_user, found)
        return [f"users whose external_id starts with {self.prefix} are left"]

    def _remove_user(self, user_id: str) -> None:
        self.instance.call("DELETE", f"/api/v1/users/{user_id}", expected=(200, 204, 404))

    def _change_settings(self, changes: dict[str, int]) -> None:
        body: dict[str, dict[str, int]] = {}
        for name, value in changes.items():
            group, _, field = name.partition(".")
            body.setdefault(group, {})[field] = value
        self.instance.call("PATCH", "/api/v1/settings", json=body)


def _value(settings: dict[str, Any], name: str) -> int:
    group, _, field = name.partition(".")
    return int(settings[group][field])


def _at_once(call: Callable[[Any], None], arguments: Iterable[Any]) -> None:
    """Some calls at a time; the first error is raised when all have ended."""
    with ThreadPoolExecutor(CALLS_AT_ONCE) as threads:
        for done in [threads.submit(call, argument) for argument in arguments]:
            done.result()
