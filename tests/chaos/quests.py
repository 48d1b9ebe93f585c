"""Quests, step by step, each with an Idempotency-Key and sent again until it is answered; pages that come and go."""

import random
import time
import uuid
from typing import Any

from tests.chaos.callers import Answer, Caller
from tests.chaos.world import QUESTERS, SPACES, World

TRIES = 8
RATING = 5


class Quests:
    """One quest at a time, from its creation to its reward. Some are left on the way."""

    def __init__(self, world: World, call: Caller, rng: random.Random) -> None:
        self.world, self.call, self.rng = world, call, rng

    def step(self) -> None:
        creator, performer, rival = self.rng.sample(QUESTERS, 3)
        xp, reputation = self.rng.randint(1, 400), self.rng.randint(1, 20)
        body = {"user": creator, "title": "Translate", "description": "All of it."}
        created = self._insist(
            "quest",
            "/api/v1/quests",
            {**body, "reward_xp": xp, "reward_reputation": reputation},
            step="create",
            key=self._key(),
            xp=xp,
            reputation=reputation,
        )
        if created.status != 201:
            return
        path = f"/api/v1/quests/{created.body['id']}"
        about = {"quest": created.body["id"]}
        steps: list[tuple[str, dict[str, Any]]] = [
            ("claim", {"user": performer}),
            ("claim", {"user": rival}),
            ("submit", {"user": performer, "submission": "Done."}),
            ("attestations", {"user": creator, "rating": RATING}),
        ]
        for step, sent in steps:
            answer = self._insist(
                "quest", f"{path}/{step}", sent, step=step, key=self._key(), **about, user=sent["user"]
            )
            if (not answer.is_ok and sent["user"] != rival) or self.rng.random() < 0.05:
                return

    def _insist(self, op: str, path: str, body: Any, *, key: str, **fields: Any) -> Answer:
        """The same key at either node, until the answer says what became of it."""
        tries = TRIES if self.rng.random() < 0.9 else 1
        for number in range(tries):
            answer = self.call(
                op,
                self.rng.choice("ab"),
                "POST",
                path,
                token=self.world.client.get(),
                body=body,
                headers={"Idempotency-Key": key},
                keep=("id", "status", "version"),
                key=key,
                **fields,
            )
            is_running = answer.status == 409 and "idempotency" in str(answer.body.get("code"))
            if not answer.is_unknown and not is_running and (number > 0 or self.rng.random() < 0.9):
                return answer
            time.sleep(0.3)
        return answer

    def _key(self) -> str:
        return uuid.UUID(int=self.rng.getrandbits(128), version=4).hex


class Pages:
    """Pages that one thread creates, changes and deletes: its last answer says how each must be."""

    def __init__(self, world: World, call: Caller, rng: random.Random) -> None:
        self.world, self.call, self.rng = world, call, rng

    def step(self) -> None:
        page = f"t{self.rng.randrange(30)}"
        path = f"/api/v1/pages/{page}"
        if self.rng.random() < 0.3:
            self._ask("page", "DELETE", path, page=page, title=None)
            return
        title = f"Title {self.rng.randrange(10**6)}"
        body = {"space": self.rng.choice(SPACES), "title": title, "url": f"https://chaos.example/{page}"}
        self._ask("page", "PUT", path, body=body, page=page, title=title)
        if self.rng.random() < 0.3:  # a deleted page takes its views with it
            self._ask("other", "POST", f"{path}/views", body={})

    def _ask(self, op: str, method: str, path: str, **options: Any) -> Answer:
        return self.call(op, self.rng.choice("ab"), method, path, token=self.world.client.get(), **options)
