"""The checker says what is wrong, and which: each test spoils one thing of a run in which everything is right."""

import copy
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.chaos import checker, history, model, seen
from tests.chaos.history import Record
from tests.chaos.seen import Finding

BEGAN = datetime(2026, 11, 18, 12, 30, tzinfo=UTC).timestamp()
HOUR = "2026-11-18T12:00:00+00:00"
QUEST = "0f3d7a52-2d6a-4f6c-8f44-3c1d2a2b1c01"

Spoil = Callable[[list[Record], dict[str, Any]], None]


class Recorded:
    """Builds a history: each call takes a tenth of a second, and begins a second after the one before."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.calls = 0

    def call(self, op: str, phase: str = "ok", *, status: int = 200, answer: Any = None, **asked: Any) -> None:
        self.calls += 1
        at = BEGAN + self.calls
        call = {"at": at, "n": self.calls, "phase": "invoked", "op": op, "node": "a", "by": "test"}
        end = {"at": at + 0.1, "n": self.calls, "phase": phase, "status": status, "answer": answer}
        self.records += [{**call, **asked}, end]

    def batch(self, *events: dict[str, Any], duplicates: int = 0, phase: str = "ok") -> None:
        answer = {"accepted": len(events) - duplicates, "duplicates": duplicates, "rejected": []}
        self.call("batch", phase, status=202, events=list(events), answer=answer if phase == "ok" else None)

    def note(self, note: str, **fields: Any) -> None:
        self.records.append({"at": BEGAN + self.calls, "phase": "note", "note": note, **fields})


def moment(seconds: float) -> str:
    return datetime.fromtimestamp(BEGAN + seconds, UTC).isoformat()


def view(name: str, page: str = "p0") -> dict[str, Any]:
    return {"type": "view", "page": page, "id": name, "occurred_at": moment(0)}


def like(kind: str, at_s: float, name: str) -> dict[str, Any]:
    return {"type": kind, "page": "p0", "user": "u0", "id": name, "occurred_at": moment(at_s)}


def right_history() -> list[Record]:
    run = Recorded()
    run.batch(view("v1"), view("v2"), view("v3", "p1"))
    run.batch(view("v1"), duplicates=1)
    run.batch(view("v4", "p1"), phase="unknown")
    run.batch(view("v5"), phase="failed")
    run.batch(like("like", -10, "l1"))
    run.batch(like("unlike", -20, "l2"))
    run.call("like", page="p1", user="u1", liked=True)
    action = {"type": "action", "action_type": "read", "user": "u0", "id": "a1", "object": "a1"}
    run.batch(action)
    for _ in range(2):
        run.call("score", user="u1", object="s1", points=7, answer={"score": 7, "delta": 7, "event_id": "e"})
    run.call("score", "unknown", status=503, user="u1", object="s2", points=3)
    run.call("quest", status=201, step="create", key="k1", xp=10, reputation=2, answer={"id": QUEST})
    for step, user in (("claim", "u0"), ("submit", "u0"), ("attestations", "u1")):
        run.call("quest", step=step, key=step, quest=QUEST, user=user, answer={"id": QUEST})
    run.call("erase", user="e1", user_id="id-e1")
    run.call("profile", subject="u1", field="suspended", value=False)
    run.call("page", page="p1", title="Second")
    run.call("revoke", status=204, credential="c1")
    run.call("try", "failed", status=401, credential="c1")
    for version in (3, 3, 5):
        rows = [{"page": {"external_id": "p1"}, "value": 1}, {"page": {"external_id": "p0"}, "value": 2}]
        answer = {"version": version, "source": "redis", "items": rows}
        run.call("read", topic="tenant:all:views", tagged=True, answer=answer)
    for seq, version in enumerate((4, 4, 6), start=1):
        run.note("frame", reader="socket a 1", node="a", type="top", topic="users:all:points", version=version, seq=seq)
    frames = [("top", {"1": 3, "2": 2}), ("top", {"1": 3, "2": 4}), ("resync", None), ("top", {"1": 2, "2": 4})]
    for seq, (kind, views) in enumerate(frames, start=1):
        of_rows = {} if views is None else {"views": views}
        fields = {"type": kind, "topic": "tenant:all:views", "version": 6, "seq": seq, **of_rows}
        run.note("frame", reader="socket a 2", node="a", **fields)
    return run.records


def right_end() -> dict[str, Any]:
    ledger = [
        ("u0", "points", "event:a1", 3, 0, "a1"),
        ("u1", "points", "action:s1", 7, 0, "s1"),
        ("u0", "xp", f"quest:{QUEST}:id-u0:xp", 10, 0, None),
        ("u0", "reputation", f"quest:{QUEST}:id-u0:reputation", 2, 0, None),
    ]
    end: dict[str, Any] = {
        "at": moment(120),
        "views": [
            {"page": "p0", "hour": HOUR, "views": 2, "visitors": 0},
            {"page": "p1", "hour": HOUR, "views": 1, "visitors": 0},
        ],
        "likes": [
            {"page": "p0", "user": "u0", "user_id": "id-u0", "at": moment(-10)},
            {"page": "p1", "user": "u1", "user_id": "id-u1", "at": moment(7)},
        ],
        "ledger": [
            {
                "id": number,
                "user": user,
                "user_id": f"id-{user}",
                "account": account,
                "source": source,
                "delta": delta,
                "previous": previous,
                "score": previous + delta,
                "at": moment(20 + number),
                "action_type": "read",
                "object": object_,
            }
            for number, (user, account, source, delta, previous, object_) in enumerate(ledger, start=1)
        ],
        "users": [user_row("u0", points=3, xp=10, reputation=2), user_row("u1", points=7), user_row("e1", erased=True)],
        "pages": [
            {"id": 1, "page": "p0", "title": "First", "space": "eng", "visibility": "private"},
            {"id": 2, "page": "p1", "title": "Second", "space": "eng", "visibility": "public"},
        ],
        "quests": [{"id": QUEST, "status": "COMPLETE", "version": 4, "xp": 10, "reputation": 2}],
    }
    board = {"version": 6, "total": 2, "source": "redis", "as_of": moment(120)}
    end["boards"] = {
        node: {
            "tenant:7d:views": {**board, "rows": [["p0", 2], ["p1", 1]]},
            "tenant:all:likes": {**board, "rows": [["p1", 1], ["p0", 1]]},
            "users:all:points": {**board, "rows": [["u1", 7], ["u0", 3]]},
            "public:30d:views": {**board, "rows": [["p1", 1]]},
        }
        for node in ("a", "b")
    }
    return end


def user_row(name: str, *, points: int = 0, xp: int = 0, reputation: int = 0, erased: bool = False) -> dict[str, Any]:
    about = {"id": f"id-{name}", "name": name, "erased": erased, "suspended": False, "display_name": None}
    return {**about, "segments": [], "points": points, "xp": xp, "reputation": reputation}


def check(spoil: Spoil | None = None) -> list[Finding]:
    records, end = right_history(), copy.deepcopy(right_end())
    if spoil is not None:
        spoil(records, end)
    return checker.check(history.read(records), end)


def test_nothing_is_found_where_everything_is_right() -> None:
    assert check() == []


def test_what_has_no_answer_may_have_happened_once() -> None:
    def happened(_records: list[Record], end: dict[str, Any]) -> None:
        end["views"][1]["views"] = 2  # v4
        end["boards"]["a"]["tenant:7d:views"]["rows"] = [["p1", 2], ["p0", 2]]
        end["boards"]["b"]["tenant:7d:views"]["rows"] = [["p1", 2], ["p0", 2]]
        for node in ("a", "b"):
            end["boards"][node]["public:30d:views"]["rows"] = [["p1", 2]]

    def twice(records: list[Record], end: dict[str, Any]) -> None:
        happened(records, end)
        end["views"][1]["views"] = 3

    assert check(happened) == []
    assert [finding.rule for finding in check(twice) if finding.rule == "views"] == ["views"]


def spoiled(place: str, key: Any, change: Callable[[Any], Any]) -> Spoil:
    def spoil(_records: list[Record], end: dict[str, Any]) -> None:
        end[place][key] = change(end[place][key])

    return spoil


def record_of(records: list[Record], **wanted: Any) -> Record:
    return next(record for record in records if wanted.items() <= record.items())


def drop_a_view(_records: list[Record], end: dict[str, Any]) -> None:
    end["views"][0]["views"] -= 1


def count_a_refused_view(_records: list[Record], end: dict[str, Any]) -> None:
    end["views"][0]["views"] += 1


def move_a_view_to_another_hour(_records: list[Record], end: dict[str, Any]) -> None:
    end["views"][1]["hour"] = "2026-11-18T11:00:00+00:00"


def drop_a_like(_records: list[Record], end: dict[str, Any]) -> None:
    end["likes"].pop()


def let_the_older_unlike_win(_records: list[Record], end: dict[str, Any]) -> None:
    end["likes"].pop(0)


def remove_a_ledger_row(_records: list[Record], end: dict[str, Any]) -> None:
    end["ledger"].pop(0)


def pay_twice(_records: list[Record], end: dict[str, Any]) -> None:
    end["ledger"].append({**end["ledger"][1], "id": 9, "previous": 7, "score": 14})
    end["users"][1]["points"] = 14


def pay_less(_records: list[Record], end: dict[str, Any]) -> None:
    end["ledger"][1] |= {"delta": 6, "score": 6}
    end["users"][1]["points"] = 6


def alter_a_balance(_records: list[Record], end: dict[str, Any]) -> None:
    end["users"][0]["points"] += 1


def pay_a_reward_twice(_records: list[Record], end: dict[str, Any]) -> None:
    end["ledger"].append({**end["ledger"][2], "id": 9, "previous": 10, "score": 20})


def take_a_quest_back(_records: list[Record], end: dict[str, Any]) -> None:
    end["quests"][0]["status"] = "CLAIMED"


def let_two_claim(records: list[Record], _end: dict[str, Any]) -> None:
    record_of(records, step="submit").update({"step": "claim", "user": "u7"})


def create_a_quest_twice(_records: list[Record], end: dict[str, Any]) -> None:
    end["quests"].append({"id": "another", "status": "OPEN", "version": 1, "xp": 10, "reputation": 2})


def keep_an_erased_user(_records: list[Record], end: dict[str, Any]) -> None:
    end["users"][2]["erased"] = False


def suspend_nobody_asked_for(_records: list[Record], end: dict[str, Any]) -> None:
    end["users"][1]["suspended"] = True


def lose_a_title(_records: list[Record], end: dict[str, Any]) -> None:
    end["pages"][1]["title"] = "First"


def accept_a_revoked_credential(records: list[Record], _end: dict[str, Any]) -> None:
    record_of(records, status=401).update({"phase": "ok", "status": 200})


def answer_with_500(records: list[Record], _end: dict[str, Any]) -> None:
    record_of(records, status=503)["status"] = 500


def call_a_new_view_a_duplicate(records: list[Record], _end: dict[str, Any]) -> None:
    record_of(records, n=1, phase="ok")["answer"] = {"accepted": 2, "duplicates": 1, "rejected": []}


def answer_differently_again(records: list[Record], _end: dict[str, Any]) -> None:
    record_of(records, status=200, answer={"score": 7, "delta": 7, "event_id": "e"})["answer"] = {"score": 14}


def read_an_older_version(records: list[Record], _end: dict[str, Any]) -> None:
    [record for record in records if (record.get("answer") or {}).get("version")][-1]["answer"]["version"] = 2


def send_an_older_frame(records: list[Record], _end: dict[str, Any]) -> None:
    frame_of(records, "1", 3)["version"] = 3


def frame_of(records: list[Record], reader: str, seq: int) -> Record:
    return next(one for one in records if one.get("reader") == f"socket a {reader}" and one.get("seq") == seq)


def send_rows_of_before(records: list[Record], _end: dict[str, Any]) -> None:
    """As a frame does whose version is newer than its rows."""
    frame_of(records, "2", 2)["views"]["1"] = 1


def forget_the_resync(records: list[Record], _end: dict[str, Any]) -> None:
    frame_of(records, "2", 3)["type"] = "invalidated"


def skip_a_frame(records: list[Record], _end: dict[str, Any]) -> None:
    frame_of(records, "1", 3)["seq"] = 7


def leave_a_reader_behind(_records: list[Record], end: dict[str, Any]) -> None:
    end["boards"]["a"]["users:all:points"]["version"] = 7


def read_what_nobody_sent(records: list[Record], _end: dict[str, Any]) -> None:
    answer = [record for record in records if (record.get("answer") or {}).get("items")][-1]["answer"]
    answer["items"] = [{"page": {"external_id": "p0"}, "value": 4}]


def alter_a_count_on_a_board(_records: list[Record], end: dict[str, Any]) -> None:
    end["boards"]["b"]["tenant:7d:views"]["rows"][1][1] = 3


def swap_two_rows(_records: list[Record], end: dict[str, Any]) -> None:
    end["boards"]["a"]["tenant:all:likes"]["rows"].reverse()


def lose_a_row_of_a_board(_records: list[Record], end: dict[str, Any]) -> None:
    end["boards"]["a"]["users:all:points"]["rows"].pop()


SPOILED: list[tuple[Spoil, str, str]] = [
    (drop_a_view, "views", "p0 at 2026-11-18T12:00:00+00:00: 1 views, expected 2: an acknowledged view is lost"),
    (count_a_refused_view, "views", "p0 at 2026-11-18T12:00:00+00:00: 3 views, expected 2"),
    (move_a_view_to_another_hour, "views", "p1 at 2026-11-18T11:00:00+00:00: 1 views, expected 0"),
    (drop_a_like, "likes", "u1 does not like p1"),
    (let_the_older_unlike_win, "likes", "u0 does not like p0"),
    (remove_a_ledger_row, "ledger", "the row of a1 is missing, acknowledged by call 8"),
    (pay_twice, "ledger", "s1 is paid 2 times: rows [2, 9]"),
    (pay_less, "ledger", "row 2 of s1 pays 6 points"),
    (alter_a_balance, "ledger", "u0 has 4 points, the ledger 3"),
    (pay_a_reward_twice, "quests", f"quest {QUEST} (COMPLETE) paid [10, 10] xp, expected [10]"),
    (take_a_quest_back, "quests", f"quest {QUEST} is CLAIMED, before attestations"),
    (let_two_claim, "quests", f"quest {QUEST} was claimed by ['u0', 'u7']"),
    (create_a_quest_twice, "quests", "there are 2 quests, and 1 were asked for"),
    (keep_an_erased_user, "erasure", "e1 is not erased"),
    (suspend_nobody_asked_for, "profile", "suspended of u1 is True, expected ['False']"),
    (lose_a_title, "pages", "p1 has the title 'First', expected ['Second']"),
    (accept_a_revoked_credential, "revocation", "c1 was accepted 0.90 s after it"),
    (answer_with_500, "status", "(score at a, unknown) was answered with 500"),
    (call_a_new_view_a_duplicate, "answer", "call 1 (batch at a, ok): 1 duplicates, expected 0"),
    (answer_differently_again, "replay", "s1 has 2 answers"),
    (read_an_older_version, "version", "version 2 of tenant:all:views from redis, after 3"),
    (send_an_older_frame, "version", "socket a 1 got a top of users:all:points with version 3 after 4"),
    (send_rows_of_before, "rows", "socket a 2 got 1 views of page 1 with version 6 after 3"),
    (forget_the_resync, "rows", "socket a 2 got 2 views of page 1 with version 6 after 3"),
    (skip_a_frame, "seq", "socket a 1 got seq 7 after 2"),
    (leave_a_reader_behind, "newest", "socket a 1 was sent version 6 of users:all:points, which has 7"),
    (read_what_nobody_sent, "staleness", "p0 has 4 views (redis), expected 0 to 2"),
    (alter_a_count_on_a_board, "boards", "tenant:7d:views at b (redis): p1 has 3, expected 1"),
    (swap_two_rows, "boards", "tenant:all:likes at a (redis): place 1 is p0 with 1, expected p1 with 1"),
    (lose_a_row_of_a_board, "boards", "users:all:points at a (redis): 1 rows, expected 2"),
]


@pytest.mark.parametrize(("spoil", "rule", "what"), SPOILED, ids=[spoil.__name__ for spoil, _, _ in SPOILED])
def test_what_is_wrong_is_found_and_named(spoil: Spoil, rule: str, what: str) -> None:
    found = check(spoil)
    assert any(finding.rule == rule and what in finding.what for finding in found), found


def test_a_like_without_an_answer_may_come_after_the_next() -> None:
    run = Recorded()
    run.call("like", "unknown", status=503, page="p0", user="u0", liked=True)
    run.call("like", page="p0", user="u0", liked=False)
    (about_one,) = model.like_events(history.read(run.records)).values()
    assert model.possible_likes(about_one) == {True, False}
    run.calls += 100
    run.call("like", page="p0", user="u0", liked=False)
    (about_one,) = model.like_events(history.read(run.records)).values()
    assert model.possible_likes(about_one) == {False}


def test_boards_may_lag_during_a_fault_and_not_after_it() -> None:
    run = Recorded()
    run.batch(view("v1"))
    run.calls += 40
    run.call("read", topic="tenant:all:views", tagged=False, answer={"version": 1, "source": "redis", "items": []})
    during = [*run.records, {"at": 0, "phase": "note", "note": "fault", "began": BEGAN + 2, "healed": BEGAN + 30}]
    assert list(seen.staleness(history.read(during), 30)) == []
    (found,) = seen.staleness(history.read(run.records), 30)
    assert "p0 has 0 views (redis), expected 1 to 1" in found.what
