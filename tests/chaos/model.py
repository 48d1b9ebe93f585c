"""What must be true after a history: for each thing that was asked, whether it must, may or must not have happened.

Pure. `MUST`: somebody was told that it did. `MAY`: no answer said so, but one was lost. `MUST_NOT`: each try was
refused.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Any

from tests.chaos.history import FAILED, OK, UNKNOWN, Call, History
from tests.chaos.world import POINTS

# How long after it was asked a call without an answer may still be carried out.
APPLIES_WITHIN_S = 60.0
# How far apart the times of a caller and a node on one machine may be.
SKEW_S = 0.05


class Verdict(Enum):
    MUST = "must"
    MAY = "may"
    MUST_NOT = "must not"


@dataclass
class Sent:
    """One event of a batch, in one call."""

    event: dict[str, Any]
    call: Call
    phase: str


@dataclass
class Thing:
    """Something that counts once, however often it was sent."""

    name: str
    about: dict[str, Any]
    phases: list[str] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)

    @property
    def verdict(self) -> Verdict:
        if OK in self.phases:
            return Verdict.MUST
        return Verdict.MAY if UNKNOWN in self.phases else Verdict.MUST_NOT

    def sent(self, call: Call, phase: str) -> None:
        self.calls.append(call)
        self.phases.append(phase)


def events(history: History) -> Iterator[Sent]:
    """Each event of each batch, with what its answer says of it."""
    for call in history.of("batch"):
        sent = call.asked["events"]
        rejected = {each["index"] for each in (call.answer or {}).get("rejected") or []}
        for index, event in enumerate(sent):
            yield Sent(event, call, FAILED if index in rejected else call.phase)


def _things(sent: Iterable[Sent], *types: str) -> dict[str, Thing]:
    found: dict[str, Thing] = {}
    for number, one in enumerate(sent):
        if one.event["type"] in types:
            name = one.event.get("id") or f"without an id, number {number}"
            found.setdefault(name, Thing(name, one.event)).sent(one.call, one.phase)
    return found


def views(history: History) -> dict[str, Thing]:
    return _things(events(history), "view")


def payments(history: History) -> dict[str, Thing]:
    """What is paid once, by the object that was sent with it."""
    found: dict[str, Thing] = {}
    for name, thing in _things(events(history), "action").items():
        about = {"user": thing.about["user"], "account": "points", "points": POINTS[thing.about["action_type"]]}
        found[name] = Thing(name, about, thing.phases, thing.calls)
    for call in history.of("score"):
        about = {"user": call.asked["user"], "account": call.asked.get("account", "points")}
        about["points"] = call.asked["points"]
        found.setdefault(call.asked["object"], Thing(call.asked["object"], about)).sent(call, call.phase)
    return found


@dataclass(frozen=True)
class LikeEvent:
    """A like or unlike. `time_s` is its own; None: it happens when it is received."""

    liked: bool
    time_s: float | None
    invoked: float
    finished: float
    is_certain: bool
    call: Call

    def is_newer_than(self, other: "LikeEvent", latest_claim_s: float) -> bool:
        """Whether it certainly is. `latest_claim_s`: the latest time that any event about this like has claimed."""
        if self.time_s is not None and other.time_s is not None:
            return self.time_s > other.time_s
        if self.time_s is None:  # it happens now, after everything before it
            return self.invoked > other.finished + SKEW_S or (
                other.time_s is not None and self.invoked - SKEW_S > other.time_s
            )
        return self.time_s > max(other.finished, latest_claim_s) + SKEW_S


def like_events(history: History, *, skew_s: float = 0.0) -> dict[tuple[str, str], list[LikeEvent]]:
    """By page and user, what was not refused. `skew_s`: how far a node's clock has jumped in this history."""
    found: dict[tuple[str, str], list[LikeEvent]] = defaultdict(list)
    for one in events(history):
        if one.event["type"] in {"like", "unlike"} and one.phase != FAILED:
            time_s = datetime.fromisoformat(one.event["occurred_at"]).timestamp()
            pair = (one.event["page"], one.event["user"])
            found[pair].append(_like_event(one.event["type"] == "like", time_s, one.call, one.phase, 0))
    for call in history.of("like"):
        if call.phase != FAILED:
            pair = (call.asked["page"], call.asked["user"])
            found[pair].append(_like_event(call.asked["liked"], None, call, call.phase, skew_s))
    return found


def _like_event(liked: bool, time_s: float | None, call: Call, phase: str, skew_s: float) -> LikeEvent:
    finished = call.finished if phase == OK else call.invoked + APPLIES_WITHIN_S
    return LikeEvent(liked, time_s, call.invoked - skew_s, finished + skew_s, phase == OK, call)


def possible_likes(about_one: Sequence[LikeEvent]) -> set[bool]:
    """Whether the page may be liked at the end: the newest decides, and what has no answer may have happened."""
    latest_s = max((event.time_s for event in about_one if event.time_s is not None), default=0.0)
    certain = [event for event in about_one if event.is_certain]
    possible = {
        event.liked
        for event in about_one
        if not any(other.is_newer_than(event, latest_s) for other in certain if other is not event)
    }
    return possible if certain else possible | {False}


def last_values(calls: Iterable[Call], name: str) -> set[Any]:
    """What a thing that one caller changes may be at the end. Empty: it is as it was at the beginning."""
    possible: list[Call] = []
    has_certain = False
    for call in calls:
        if call.phase == OK:
            has_certain = True
            possible = [
                one for one in possible if one.phase == UNKNOWN and one.invoked + APPLIES_WITHIN_S > call.invoked
            ]
        if call.phase != FAILED:
            possible.append(call)
    values = {call.asked[name] for call in possible}
    return values if has_certain else values | ({...} if values else set())
