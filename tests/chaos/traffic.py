"""Views, likes and batches: late, duplicate, out of order, and retried with the same id at either node."""

import random
import uuid
from collections import deque
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.chaos.callers import Answer, Caller
from tests.chaos.world import MEMBERS, PAGES, USERS, World

# How late a view arrives. Each is far from the beginning of every window, whatever hour ends meanwhile.
LATE = (timedelta(hours=1), timedelta(hours=5), timedelta(hours=30), timedelta(days=3), timedelta(days=6))
# A named reader is counted once a day, at the first view's hour: only in hours that are in the same windows.
LATE_NAMED = timedelta(days=3)
MAX_BATCH = 20
# Of what was not answered: how much is sent again with the same id.
RETRIED = 0.85
MAX_WAITING = 200
ACTIONS = ("read", "share", "capped")

Event = dict[str, Any]


class Clients:
    """The clocks of the clients, which a fault may have jump."""

    offset = timedelta(0)


class Traffic:
    """One thread's part of it. `step` sends one request."""

    def __init__(self, world: World, call: Caller, rng: random.Random, clients: Clients) -> None:
        self.world, self.call, self.rng, self.clients = world, call, rng, clients
        self._again: deque[list[Event]] = deque(maxlen=MAX_WAITING)

    def step(self) -> None:
        rng = self.rng
        if self._again and rng.random() < 0.3:
            self.send_batch(self._again.popleft())
            return
        kind = rng.choices(["view", "like", "own like", "batch"], [5, 3, 1, 2])[0]
        if kind == "view":
            self._send_view(self.view())
        elif kind == "batch":
            self.send_batch(self.batch())
        elif kind == "like":
            self._send_like(rng.choice([*PAGES]), rng.choice(USERS))
        else:
            self._send_own_like(rng.choice([*PAGES]), rng.choice(MEMBERS))

    def flush(self) -> bool:
        """Send again what waits for it. False: there is nothing."""
        if not self._again:
            return False
        self.send_batch(self._again.popleft())
        return True

    def view(self) -> Event:
        rng = self.rng
        event: Event = {"type": "view", "page": rng.choice([*PAGES])}
        if rng.random() < 0.95:
            event["id"] = self._id()
        if rng.random() < 0.2:
            event["user"] = rng.choice(USERS)
            event["occurred_at"] = self._time(rng.choice([timedelta(0), LATE_NAMED]))
        else:
            event["occurred_at"] = self._time(rng.choice([timedelta(0), timedelta(0), *LATE]))
        return event

    def like(self) -> Event:
        rng = self.rng
        back = timedelta(seconds=rng.choice([0, 0, rng.uniform(0, 60), rng.uniform(0, 18 * 3600)]))
        kind = rng.choice(["like", "like", "unlike"])
        event = {"type": kind, "page": rng.choice([*PAGES]), "user": rng.choice(USERS), "id": self._id()}
        return {**event, "occurred_at": self._time(back)}

    def action(self) -> Event:
        rng, event_id = self.rng, self._id()
        event = {"type": "action", "action_type": rng.choice(ACTIONS), "user": rng.choice(USERS)}
        return {**event, "id": event_id, "object": event_id}

    def batch(self) -> list[Event]:
        rng = self.rng
        makers = (self.view, self.view, self.like, self.action)
        events = [rng.choice(makers)() for _ in range(rng.randint(2, MAX_BATCH))]
        if rng.random() < 0.2:
            events.append(dict(rng.choice(events)))  # twice in one batch
        if rng.random() < 0.2:
            events.insert(rng.randrange(len(events)), {"type": "view", "page": "nowhere", "id": self._id()})
        return events

    def send_batch(self, events: list[Event]) -> None:
        keep = ("accepted", "duplicates", "rejected")
        body = {"events": events}
        path = "/api/v1/events"
        answer = self._call("batch", "POST", path, body=body, keep=keep, events=events)
        self._maybe_again(answer, events)

    def _send_view(self, event: Event) -> None:
        body = {name: value for name, value in event.items() if name in {"id", "user", "occurred_at"}}
        path = f"/api/v1/pages/{event['page']}/views"
        answer = self._call(
            "batch", "POST", path, body=body, keep=("accepted", "duplicates", "rejected"), events=[event]
        )
        self._maybe_again(answer, [event])

    def _send_like(self, page: str, user: str) -> None:
        method = self.rng.choice(["PUT", "PUT", "DELETE"])
        path = f"/api/v1/pages/{page}/likes/{user}"
        self._call("like", method, path, keep=("liked",), page=page, user=user, liked=method == "PUT")

    def _send_own_like(self, page: str, member: str) -> None:
        method = self.rng.choice(["PUT", "PUT", "DELETE"])
        token = self.world.members[member]
        fields: dict[str, Any] = {"page": page, "user": member, "liked": method == "PUT"}
        used = token.get()
        answer = self.call(
            "like", self._node(), method, f"/api/v1/pages/{page}/like", token=used, keep=("liked",), **fields
        )
        if answer.status == 401:
            token.renew(used)

    def _maybe_again(self, answer: Answer, events: list[Event]) -> None:
        """Some that were answered are sent again too: they must be duplicates."""
        with_ids = [event for event in events if "id" in event]
        chance = RETRIED if answer.is_unknown else 0.1 if answer.is_ok else 0.0
        if with_ids and self.rng.random() < chance:
            self._again.append(with_ids)

    def _call(self, op: str, method: str, path: str, **options: Any) -> Answer:
        used = self.world.client.get()
        answer = self.call(op, self._node(), method, path, token=used, **options)
        if answer.status == 401:
            self.world.client.renew(used)
        return answer

    def _node(self) -> str:
        return self.rng.choice("ab")

    def _id(self) -> str:
        return uuid.UUID(int=self.rng.getrandbits(128), version=4).hex

    def _time(self, back: timedelta) -> str:
        return (datetime.now(UTC) + self.clients.offset - back).isoformat()
