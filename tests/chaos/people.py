"""Scores, action tokens and corrections; erasures, suspensions and revocations."""

import random
import time
import uuid
from collections import deque
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from tests.chaos.callers import Answer, Caller
from tests.chaos.world import MEMBERS, POINTS, RED, SUSPENDED, TENANT, USERS, VISITORS, World

TRIES = 6
# How long a revoked credential is tried at both nodes.
TRIED_FOR_S = 30.0
MAX_TRIED = 50


class Scores:
    """Members' own claims, action tokens and an admin's corrections: each with an id that makes it count once."""

    def __init__(self, world: World, call: Caller, rng: random.Random) -> None:
        self.world, self.call, self.rng = world, call, rng

    def step(self) -> None:
        self.rng.choice([self._update, self._update, self._spend_token, self._correct])()

    def _update(self) -> None:
        member, action_id = self.rng.choice(MEMBERS), str(uuid.UUID(int=self.rng.getrandbits(128), version=4))
        action = self.rng.choice(["read", "share"])
        body = {
            "actionId": action_id,
            "actionType": action,
            "object": action_id,
            "timestamp": datetime.now(UTC).isoformat(),
        }
        fields = {"user": member, "object": action_id, "points": POINTS[action]}
        self._insist("score", "POST", "/api/v1/scores/update", member, body, fields)

    def _spend_token(self) -> None:
        member, object_ = self.rng.choice(MEMBERS), uuid.UUID(int=self.rng.getrandbits(128), version=4).hex
        wanted = {"user": self.world.member_ids[member], "action_type": "token", "object": object_}
        issued = self.call(
            "other", self._node(), "POST", "/api/v1/action-tokens", token=self.world.client.get(), body=wanted
        )
        if issued.status == 201:
            body = {"action_token": issued.body["action_token"]}
            fields = {"user": member, "object": object_, "points": POINTS["token"]}
            self._insist("score", "PATCH", "/api/v1/scores", member, body, fields)

    def _correct(self) -> None:
        member, key = self.rng.choice(MEMBERS), uuid.UUID(int=self.rng.getrandbits(128), version=4).hex
        delta, account = self.rng.randint(1, 9), self.rng.choice(["points", "xp", "reputation"])
        body = {"account": account, "delta": delta, "reason": key}
        path = f"/api/v1/users/{self.world.member_ids[member]}/corrections"
        fields = {"user": member, "object": key, "points": delta, "account": account}
        for _ in range(self.rng.randint(1, TRIES)):
            answer = self.call(
                "score",
                self._node(),
                "POST",
                path,
                token=self.world.client.get(),
                body=body,
                headers={"Idempotency-Key": key},
                keep=("score", "delta", "entry_id"),
                **fields,
            )
            if answer.is_ok and self.rng.random() < 0.8:
                return
            time.sleep(0.2)

    def _insist(self, op: str, method: str, path: str, member: str, body: Any, fields: dict[str, Any]) -> None:
        """Until it is answered, mostly; sometimes once more."""
        for _ in range(self.rng.randint(1, TRIES)):
            token = self.world.members[member].get()
            answer = self.call(
                op, self._node(), method, path, token=token, body=body, keep=("score", "delta", "event_id"), **fields
            )
            if answer.status == 401:
                self.world.members[member].renew(token)
            if not answer.is_unknown and self.rng.random() < 0.8:
                return
            time.sleep(0.2)

    def _node(self) -> str:
        return self.rng.choice("ab")


@dataclass
class _Revoked:
    name: str
    headers: dict[str, str]
    path: str
    until: float


class Credentials:
    """Clients, keys and sessions that are created, used, revoked, and tried again at both nodes."""

    def __init__(self, world: World, call: Caller, rng: random.Random) -> None:
        self.world, self.call, self.rng = world, call, rng
        self._revoked: deque[_Revoked] = deque(maxlen=MAX_TRIED)

    def step(self) -> None:
        if self.rng.random() < 0.1 or not self._revoked:
            self.rng.choice([self._revoke_client, self._revoke_client, self._revoke_key, self._log_out])()
        else:
            tried = self.rng.choice(self._revoked)
            self._try(tried)
            if time.monotonic() > tried.until:
                self._revoked.remove(tried)

    def _revoke_client(self) -> None:
        created = self._admin("POST", "/api/v1/clients", {"name": "short-lived", "scopes": ["stats:read"]})
        if created.status != 201:
            return
        body = {"grant_type": "client_credentials", "client_id": created.body["client_id"]}
        body["client_secret"] = created.body["client_secret"]
        token = self.call("other", self._node(), "POST", "/oauth/token", body=body)
        if token.status == 200:
            headers = {"Authorization": f"Bearer {token.body['access_token']}"}
            path = f"/api/v1/clients/{created.body['client_id']}"
            self._use_and_revoke(created.body["client_id"], headers, "/api/v1/spaces", "DELETE", path)

    def _revoke_key(self) -> None:
        created = self._admin("POST", "/api/v1/keys", {"name": "short-lived", "origins": ["https://chaos.example"]})
        if created.status == 201:
            key = str(created.body["key"] if "key" in created.body else created.body["id"])
            path = "/api/v1/leaderboards?scope=public"
            self._use_and_revoke(key, {"X-Plaudit-Key": key}, path, "DELETE", f"/api/v1/keys/{key}")

    def _log_out(self) -> None:
        name = self.rng.choice(VISITORS)
        body = {"tenant": TENANT, "username": name, "password": self.world.passwords[name]}
        answer = self.call("other", self._node(), "POST", "/api/v1/auth/login", body=body)
        if answer.status == 200:
            headers = {"Authorization": f"Bearer {answer.body['access_token']}"}
            self._use_and_revoke(
                uuid.UUID(int=self.rng.getrandbits(128)).hex, headers, "/api/v1/spaces", "POST", "/api/v1/auth/logout"
            )

    def _use_and_revoke(self, name: str, headers: dict[str, str], path: str, method: str, revocation: str) -> None:
        tried = _Revoked(name, headers, path, time.monotonic() + TRIED_FOR_S)
        for node in "ab":
            self.call("try", node, "GET", path, headers=headers, credential=name)
        own = headers if revocation.endswith("logout") else {"Authorization": f"Bearer {self.world.client.get()}"}
        self.call("revoke", self._node(), method, revocation, headers=own, credential=name)
        self._revoked.append(tried)
        self._try(tried)

    def _try(self, tried: _Revoked) -> None:
        for node in self.rng.sample("ab", 2):
            self.call("try", node, "GET", tried.path, headers=tried.headers, credential=tried.name)

    def _admin(self, method: str, path: str, body: Any) -> Answer:
        return self.call("other", self._node(), method, path, token=self.world.client.get(), body=body)

    def _node(self) -> str:
        return self.rng.choice("ab")


class Lives:
    """Users who are erased, and users who are suspended and let act again."""

    def __init__(self, world: World, call: Caller, rng: random.Random) -> None:
        self.world, self.call, self.rng = world, call, rng
        self._erased = 0

    def step(self) -> None:
        self.rng.choice([self._erase, self._suspend, self._change_profile])()

    def _erase(self) -> None:
        self._erased += 1
        user = f"e{self._erased}"
        created = self._ask("other", "PUT", f"/api/v1/users/ext:{user}", body={"segments": [RED]})
        if created.status not in {200, 201}:
            return
        for page in ("p0", "p1"):
            self._ask("like", "PUT", f"/api/v1/pages/{page}/likes/{user}", page=page, user=user, liked=True)
        event_id = uuid.UUID(int=self.rng.getrandbits(128), version=4).hex
        event = {"type": "action", "action_type": "share", "user": user, "id": event_id, "object": event_id}
        keep = ("accepted", "duplicates", "rejected")
        self._ask("batch", "POST", "/api/v1/events", body={"events": [event]}, keep=keep, events=[event])
        path = f"/api/v1/users/{created.body['id']}"
        for _ in range(TRIES):
            if not self._ask("erase", "DELETE", path, user=user, user_id=created.body["id"]).is_unknown:
                return
            time.sleep(0.3)

    def _suspend(self) -> None:
        user, suspended = self.rng.choice(SUSPENDED), self.rng.random() < 0.5
        event_id = uuid.UUID(int=self.rng.getrandbits(128), version=4).hex
        event = {"type": "action", "action_type": "read", "user": user, "id": event_id, "object": event_id}
        keep = ("accepted", "duplicates", "rejected")
        self._ask("batch", "POST", "/api/v1/events", body={"events": [event]}, keep=keep, events=[event])
        path, body = f"/api/v1/users/ext:{user}", {"suspended": suspended}
        self._ask("profile", "PATCH", path, body=body, subject=user, field="suspended", value=suspended)

    def _change_profile(self) -> None:
        user, name = self.rng.choice(USERS), f"Name {self.rng.randrange(10**6)}"
        path, body = f"/api/v1/users/ext:{user}", {"display_name": name}
        self._ask("profile", "PUT", path, body=body, subject=user, field="display_name", value=name)

    def _ask(self, op: str, method: str, path: str, **options: Any) -> Answer:
        return self.call(op, self.rng.choice("ab"), method, path, token=self.world.client.get(), **options)
