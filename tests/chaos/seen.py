"""What callers and readers saw while the run went on: errors, revoked credentials, versions, and how far boards lag."""

import bisect
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

from tests.chaos import model
from tests.chaos.history import OK, UNKNOWN, History
from tests.chaos.model import Verdict

# While Redis is away, boards are read from snapshots: documented to be at most this old.
SNAPSHOT_WITHIN_S = 60.0
BOARD_WITH_VALUES = "tenant:all:views"


class Finding(NamedTuple):
    rule: str
    what: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.what}"


def failures(history: History) -> Iterator[Finding]:
    """No answer is a 500: what cannot be done now is 503."""
    for call in history.calls:
        if call.status is not None and call.status >= 500 and call.status != 503:
            yield Finding("status", f"{call} was answered with {call.status}")


def revocations(history: History) -> Iterator[Finding]:
    """A credential is refused in every call that begins after the answer to its revocation."""
    revoked: dict[str, float] = {}
    for call in history.of("revoke"):
        if call.phase == OK:
            revoked.setdefault(call.asked["credential"], call.finished)
    for call in history.of("try"):
        since = revoked.get(call.asked["credential"])
        if since is not None and call.invoked > since and call.phase == OK:
            after_s = call.invoked - since
            yield Finding("revocation", f"{call.asked['credential']} was accepted {after_s:.2f} s after it: {call}")


def versions(history: History) -> Iterator[Finding]:
    """They never go back: on a connection, and for a reader who sends the `ETag` of the answer before."""
    newest: dict[tuple[str, str], int] = {}
    last_seq: dict[str, int] = {}
    for frame in history.noted("frame"):
        reader, seq = frame["reader"], frame.get("seq")
        if seq is not None:
            if reader in last_seq and seq != last_seq[reader] + 1:
                yield Finding("seq", f"{reader} got seq {seq} after {last_seq[reader]}")
            last_seq[reader] = seq
        if frame.get("version") is None or "topic" not in frame:
            continue
        key = (reader, frame["topic"])
        if frame["version"] < newest.get(key, -1):
            what = f"{reader} got a {frame['type']} of {frame['topic']} with version {frame['version']}"
            yield Finding("version", f"{what} after {newest[key]}")
        newest[key] = max(newest.get(key, -1), frame["version"])
    read: dict[tuple[str, str], tuple[int, Any]] = {}
    for call in history.of("read"):
        if call.phase != OK or call.status != 200:
            continue
        key, version = (call.asked["by"], call.asked["topic"]), call.answer["version"]
        before = read.get(key)
        if before is not None and version < before[0] and call.asked["tagged"]:
            source = call.answer["source"]
            yield Finding(
                "version", f"{call}: version {version} of {key[1]} from {source}, after {before[0]} in {before[1]}"
            )
        read[key] = (version, call)


def rows(history: History) -> Iterator[Finding]:
    """Views are only added, so the rows of a newer frame never have fewer than those of one before on its connection.

    After a `resync` they may: what Redis had shown, and was not committed yet, may have been lost.
    """
    most: dict[str, dict[str, int]] = defaultdict(dict)
    for frame in history.noted("frame"):
        if frame.get("topic") != BOARD_WITH_VALUES:
            continue
        seen_before = most[frame["reader"]]
        if frame["type"] == "resync":
            seen_before.clear()
        for page, views in frame.get("views", {}).items():
            if views < seen_before.get(page, 0):
                what = f"{frame['reader']} got {views} views of page {page} with version {frame['version']}"
                yield Finding("rows", f"{what} after {seen_before[page]}")
            seen_before[page] = max(views, seen_before.get(page, 0))


def newest(history: History, final: dict[str, Any]) -> Iterator[Finding]:
    """Who still follows a board at the end was sent its newest version."""
    closed = {note["reader"] for note in history.noted("closed")}
    last = {
        (frame["reader"], frame["node"], frame["topic"]): frame["version"]
        for frame in history.noted("frame")
        if frame.get("version") is not None and frame["reader"] not in closed
    }
    for (reader, node, topic), version in last.items():
        board = final["boards"][node].get(topic, {})
        if version < board.get("version", 0):
            yield Finding("newest", f"{reader} was sent version {version} of {topic}, which has {board['version']}")


def staleness(history: History, within_s: float) -> Iterator[Finding]:
    """A board that is read has every view that was acknowledged so long ago, not counting the time of faults; and none
    that was not yet sent.
    """
    views: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for thing in model.views(history).values():
        if thing.verdict is not Verdict.MUST_NOT:
            acknowledged = [call.finished for call, phase in zip(thing.calls, thing.phases, strict=True) if phase == OK]
            views[thing.about["page"]].append(
                (min(call.invoked for call in thing.calls), min(acknowledged, default=0.0))
            )
    sent = {page: sorted(invoked for invoked, _ in of_page) for page, of_page in views.items()}
    known = {page: sorted(ended for _, ended in of_page if ended) for page, of_page in views.items()}
    faults = [(note["began"], note["healed"]) for note in history.noted("fault")]
    for call in history.of("read"):
        if call.phase == OK and call.status == 200 and call.asked["topic"] == BOARD_WITH_VALUES:
            values = {row["page"]["external_id"]: row["value"] for row in call.answer["items"] if row["page"]}
            allowed_s = SNAPSHOT_WITHIN_S if call.answer["source"] == "snapshot" else within_s
            due = _quiet_before(call.invoked, allowed_s, faults)
            for page in views:
                least = bisect.bisect_left(known[page], due)
                most = bisect.bisect_right(sent[page], call.finished)
                found = values.get(page, 0)
                if not least <= found <= most:
                    yield Finding(
                        "staleness",
                        f"{call}: {page} has {found} views ({call.answer['source']}), expected {least} to {most}",
                    )


def _quiet_before(moment: float, within_s: float, faults: list[tuple[float, float]]) -> float:
    """The moment from which on so many seconds without a fault had passed."""
    left, at = within_s, moment
    for began, healed in sorted(faults, reverse=True):
        if began >= at:
            continue
        quiet = max(0.0, at - max(healed, began))
        if quiet >= left:
            return at - left
        left -= quiet
        at = min(at, began)
    return at - left


def lost_calls(history: History) -> int:
    return sum(call.phase == UNKNOWN for call in history.calls)
