"""Compares a history with what the site has at the end. Each difference is a finding that names what differs.

The rules of effects are here: what was acknowledged is there once, what was refused is not, and what has no answer is
there once at most. `seen` has those of what readers saw meanwhile.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from tests.chaos import model, seen, standings
from tests.chaos.history import FAILED, OK, UNKNOWN, Call, History
from tests.chaos.model import Thing, Verdict
from tests.chaos.seen import Finding
from tests.chaos.world import DAILY_CAP, POINTS

Final = dict[str, Any]

# In which order a quest goes on; nothing in the traffic takes it back.
STATES = ("OPEN", "CLAIMED", "PENDING_REVIEW", "COMPLETE")
REACHED_BY = {"create": "OPEN", "claim": "CLAIMED", "submit": "PENDING_REVIEW", "attestations": "COMPLETE"}
ACCOUNTS = ("points", "xp", "reputation")


@dataclass(frozen=True)
class Limits:
    """How far the clock of a node has jumped, how long boards may lag, and how long an answer may take."""

    skew_s: float = 0.0
    boards_within_s: float = 30.0
    answers_within_s: float = 15.0


def check(history: History, final: Final, limits: Limits = Limits()) -> list[Finding]:  # noqa: B008  it is frozen
    """Every finding, in a stable order."""
    return [
        *seen.failures(history),
        *_answers(history),
        *_views(history, final),
        *_likes(history, final, limits),
        *_ledger(history, final),
        *_chains(final),
        *_quests(history, final),
        *_users(history, final),
        *_pages(history, final),
        *seen.revocations(history),
        *seen.versions(history),
        *seen.rows(history),
        *seen.newest(history, final),
        *seen.staleness(history, limits.boards_within_s),
        *boards(final),
    ]


def _answers(history: History) -> Iterator[Finding]:
    """A batch says of each event whether it is new: one that was acknowledged before is a duplicate."""
    phases: dict[str, str] = {}
    for call in sorted(history.of("batch"), key=lambda one: one.invoked):
        if call.phase == FAILED:
            continue
        answer, events = call.answer or {}, call.asked["events"]
        rejected = {each["index"] for each in answer.get("rejected") or []}
        refused = {events[index].get("id") for index in rejected}
        names = [event["id"] for index, event in enumerate(events) if "id" in event and index not in rejected]
        known = unsure = 0
        for name in names:
            known += phases.get(name) == OK
            unsure += phases.get(name) == UNKNOWN or name in refused
            if name not in refused:
                phases[name] = OK if OK in {call.phase, phases.get(name)} else UNKNOWN
        if call.phase != OK:
            continue
        if answer["accepted"] + answer["duplicates"] + len(rejected) != len(events):
            yield Finding("answer", f"{call}: {answer} is not the sum of its {len(events)} events")
        elif not known <= answer["duplicates"] <= known + unsure:
            expected = f"{known}" if not unsure else f"{known} to {known + unsure}"
            yield Finding("answer", f"{call}: {answer['duplicates']} duplicates, expected {expected}")


def _views(history: History, final: Final) -> Iterator[Finding]:
    """By page and hour, so that a late view is also in its own hour."""
    must: Counter[tuple[str, str]] = Counter()
    may: Counter[tuple[str, str]] = Counter()
    for thing in model.views(history).values():
        if thing.verdict is Verdict.MUST_NOT:
            continue
        place = (thing.about["page"], _hour(thing, "occurred_at"))
        (must if thing.verdict is Verdict.MUST else may)[place] += 1
    known_pages = {page for page, _ in must | may}
    found = Counter({(row["page"], row["hour"]): row["views"] for row in final["views"] if row["page"] in known_pages})
    for place in sorted(found | must | may):
        least, most = must[place], must[place] + may[place]
        if not least <= found[place] <= most:
            what = "an acknowledged view is lost" if found[place] < least else "a view is counted that must not be"
            expected = f"{least}" if least == most else f"{least} to {most}"
            yield Finding("views", f"{place[0]} at {place[1]}: {found[place]} views, expected {expected}: {what}")


def _hour(thing: Thing, name: str) -> str:
    moment = thing.about.get(name)
    at = datetime.fromisoformat(moment) if moment else datetime.fromtimestamp(thing.calls[0].invoked, UTC)
    return at.astimezone(UTC).replace(minute=0, second=0, microsecond=0).isoformat()


def _likes(history: History, final: Final, limits: Limits) -> Iterator[Finding]:
    erased = {call.asked["user"] for call in history.of("erase")}
    liked = Counter((row["page"], row["user"]) for row in final["likes"])
    about = model.like_events(history, skew_s=limits.skew_s)
    for pair in sorted(about.keys() | liked.keys()):
        page, user = pair
        if liked[pair] > 1:
            yield Finding("likes", f"{user} likes {page} {liked[pair]} times")
        if user in erased:
            continue
        possible = model.possible_likes(about.get(pair, []))
        if bool(liked[pair]) not in possible:
            newest = ", ".join(str(event.call) for event in about.get(pair, [])[-3:])
            state = "likes" if liked[pair] else "does not like"
            yield Finding("likes", f"{user} {state} {page}, which the newest event does not say ({newest})")


def _ledger(history: History, final: Final) -> Iterator[Finding]:
    """Each payment has one row, with its user, account and points; and each row is somebody's payment."""
    rows: dict[str, list[dict[str, Any]]] = defaultdict(list)
    ids_of_erased = {call.asked["user"]: call.asked["user_id"] for call in history.of("erase")}
    of_erased: Counter[str] = Counter()
    for row in final["ledger"]:
        if row["user_id"] in ids_of_erased.values():  # what they did is not said any more
            of_erased[row["user_id"]] += 1
        elif not row["source"].startswith("quest:"):
            rows[row["object"]].append(row)
    least: Counter[str] = Counter()
    most: Counter[str] = Counter()
    for name, thing in model.payments(history).items():
        yield from _repeated(thing)
        user_id = ids_of_erased.get(thing.about["user"])
        if user_id is None:
            yield from _paid(name, thing, rows.pop(name, []))
        else:
            least[user_id] += thing.verdict is Verdict.MUST
            most[user_id] += thing.verdict is not Verdict.MUST_NOT
    for name, found in rows.items():
        yield Finding("ledger", f"row {found[0]['id']} ({name}) was paid for nothing that was sent")
    for user_id in least | most | of_erased:
        if not least[user_id] <= of_erased[user_id] <= most[user_id]:
            what = f"the erased user {user_id} has {of_erased[user_id]} rows"
            yield Finding("ledger", f"{what}, expected {least[user_id]} to {most[user_id]}")
    yield from _caps(final)


def _paid(name: str, thing: Thing, found: list[dict[str, Any]]) -> Iterator[Finding]:
    if thing.verdict is Verdict.MUST and not found:
        yield Finding("ledger", f"the row of {name} is missing, acknowledged by {_acknowledging(thing)}")
    elif thing.verdict is Verdict.MUST_NOT and found:
        yield Finding("ledger", f"{name} was refused by {thing.calls[-1]} and is in row {found[0]['id']}")
    elif len(found) > 1:
        yield Finding("ledger", f"{name} is paid {len(found)} times: rows {[row['id'] for row in found]}")
    for row in found:
        about = thing.about
        if (row["delta"], row["account"]) != (about["points"], about["account"]):
            yield Finding("ledger", f"row {row['id']} of {name} pays {row['delta']} {row['account']}: {about}")


def _acknowledging(thing: Thing) -> Any:
    return next(call for call, phase in zip(thing.calls, thing.phases, strict=True) if phase == OK)


def _repeated(thing: Thing) -> Iterator[Finding]:
    """The same request again gets the first answer."""
    calls = [call for call in thing.calls if call.op == "score" and call.phase == OK and call.answer]
    answers = {tuple(sorted((call.answer or {}).items())) for call in calls}
    if len(answers) > 1:
        yield Finding("replay", f"{thing.name} has {len(answers)} answers: {[str(call) for call in calls]}")


def _caps(final: Final) -> Iterator[Finding]:
    capped: Counter[tuple[str, str]] = Counter()
    for row in final["ledger"]:
        if row["action_type"] == "capped":
            capped[row["user"], row["at"][:10]] += POINTS["capped"]
    for (user, day), points in capped.items():
        if points > DAILY_CAP:
            yield Finding("cap", f"{user} was paid {points} on {day}, above the cap of {DAILY_CAP}")


def _chains(final: Final) -> Iterator[Finding]:
    """Each row of an account continues from the one before, and the last one is the user's balance."""
    balances: dict[tuple[str, str], int] = defaultdict(int)
    for row in sorted(final["ledger"], key=lambda one: int(one["id"])):
        key = (row["user_id"], row["account"])
        if row["previous"] != balances[key] or row["previous"] + row["delta"] != row["score"]:
            yield Finding(
                "ledger", f"row {row['id']} of {row['user']} continues from {row['previous']}, not {balances[key]}"
            )
        balances[key] = row["score"]
    for user in final["users"]:
        for account in ACCOUNTS:
            if user[account] != balances[user["id"], account]:
                yield Finding(
                    "ledger",
                    f"{user['name']} has {user[account]} {account}, the ledger {balances[user['id'], account]}",
                )


def _quests(history: History, final: Final) -> Iterator[Finding]:
    quests = {quest["id"]: quest for quest in final["quests"]}
    created: dict[str, set[str]] = defaultdict(set)
    claimed_by: dict[str, set[str]] = defaultdict(set)
    for call in history.of("quest"):
        step = call.asked["step"]
        if step == "create" and call.phase != FAILED:
            created[call.asked["key"]] |= {call.answer["id"]} if call.answer else set()
        if call.phase == OK and call.answer:
            if step == "claim":
                claimed_by[call.answer["id"]].add(call.asked["user"])
            yield from _step(call, quests.get(call.answer["id"]))
    for key, ids in created.items():
        if len(ids) > 1:
            yield Finding("quests", f"the key {key} created {len(ids)} quests: {sorted(ids)}")
    for quest_id, users in claimed_by.items():
        if len(users) > 1:
            yield Finding("quests", f"quest {quest_id} was claimed by {sorted(users)}")
    if len(quests) > len(created):
        yield Finding("quests", f"there are {len(quests)} quests, and {len(created)} were asked for")
    yield from _rewards(final)


def _step(call: Call, quest: dict[str, Any] | None) -> Iterator[Finding]:
    """A step that was acknowledged is not taken back."""
    step = call.asked["step"]
    if quest is None:
        yield Finding("quests", f"quest {call.answer['id']} is missing, acknowledged by {call}")
    elif STATES.index(quest["status"]) < STATES.index(REACHED_BY[step]):
        yield Finding("quests", f"quest {quest['id']} is {quest['status']}, before {step}, acknowledged by {call}")


def _rewards(final: Final) -> Iterator[Finding]:
    paid: dict[tuple[str, str], list[int]] = defaultdict(list)
    for row in final["ledger"]:
        kind, _, rest = row["source"].partition(":")
        if kind == "quest":
            paid[rest.partition(":")[0], row["account"]].append(row["delta"])
    for quest in final["quests"]:
        for account in ("xp", "reputation"):
            expected = [quest[account]] if quest["status"] == "COMPLETE" else []
            found = paid.pop((quest["id"], account), [])
            if found != expected:
                what = f"quest {quest['id']} ({quest['status']}) paid {found} {account}, expected {expected}"
                yield Finding("quests", what)
    for quest_id, account in paid:
        yield Finding("quests", f"{account} was paid for quest {quest_id}, which does not exist")


def _users(history: History, final: Final) -> Iterator[Finding]:
    users = {user["name"]: user for user in final["users"]}
    by_id = {user["id"]: user for user in final["users"]}
    liking = {row["user_id"] for row in final["likes"]}
    for call in history.of("erase"):
        user_id = call.asked["user_id"]
        if call.phase == OK and not by_id[user_id]["erased"]:
            yield Finding("erasure", f"{call.asked['user']} is not erased, acknowledged by {call}")
        if call.phase == OK and user_id in liking:
            yield Finding("erasure", f"{call.asked['user']} still likes a page after {call}")
    changed: dict[tuple[str, str], list[Any]] = defaultdict(list)
    for call in history.of("profile"):
        changed[call.asked["subject"], call.asked["field"]].append(call)
    for (user, field), calls in changed.items():
        possible = model.last_values(calls, "value")
        found = users[user][field]
        if possible and found not in possible and ... not in possible:
            yield Finding("profile", f"{field} of {user} is {found!r}, expected {sorted(map(str, possible))}")


def _pages(history: History, final: Final) -> Iterator[Finding]:
    titles = {page["page"]: page["title"] for page in final["pages"]}
    changed: dict[str, list[Any]] = defaultdict(list)
    for call in history.of("page"):
        # Of a page that is not there: deleted already, maybe by a call without an answer.
        changed[call.asked["page"]].append(replace(call, phase=OK) if call.status == 404 else call)
    for page, calls in changed.items():
        possible = model.last_values(calls, "title")
        if possible and titles.get(page) not in possible and ... not in possible:
            yield Finding("pages", f"{page} has the title {titles.get(page)!r}, expected {sorted(map(str, possible))}")


def boards(final: Final) -> Iterator[Finding]:
    """Each board of each node against the rows of PostgreSQL."""
    at = datetime.fromisoformat(final["at"])
    for node, shown in final["boards"].items():
        for topic, board in shown.items():
            if "rows" not in board:
                yield Finding("boards", f"{topic} at {node} cannot be read: status {board['status']}")
                continue
            expected = standings.rows_of(final, topic, at)
            found = [(str(name), float(value)) for name, value in board["rows"]]
            if difference := _difference(found, expected):
                yield Finding("boards", f"{topic} at {node} ({board['source']}): {difference}")


def _difference(found: list[standings.Row], expected: list[standings.Row]) -> str:
    """The first difference, in words; empty: there is none."""
    for place, (one, other) in enumerate(zip(found, expected, strict=False), start=1):
        if one[0] != other[0]:
            return f"place {place} is {one[0]} with {one[1]:g}, expected {other[0]} with {other[1]:g}"
        if abs(one[1] - other[1]) > 1e-6:
            return f"{one[0]} has {one[1]:g}, expected {other[1]:g}"
    return "" if len(found) == len(expected) else f"{len(found)} rows, expected {len(expected)}"
