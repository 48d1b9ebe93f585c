"""The demo's quests: a dozen in every state at the start, and now and then one step more.

What the demo's readers do for each other, through the API. A quest of the start is known by its tag and title, and how
far it is by its version: so a start that was interrupted is completed by the next, and later ones add nothing.
"""

import random
import urllib.error
import urllib.parse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

QUESTS = "/api/v1/quests"
# Only quests of the start have it.
TAG = "wiki-week"
READER = "reader-"
# Refusals: somebody was quicker, a rule or a setting does not allow it, somebody was erased.
REFUSED = {403, 404, 409, 412, 422, 428}
MAX_LISTED = 100
MAX_OPEN = 15
# So many stay in each state for those who look at the demo.
KEPT = {"OPEN": 4, "CLAIMED": 2, "PENDING_REVIEW": 3}
# Nobody takes a step on what has just changed: people need their time, and those who try the demo their turn.
REST = timedelta(minutes=1)


class Api(Protocol):
    """What is needed of `app.run.demo_traffic.Api`."""

    def call(self, method: str, path: str, body: Any = None) -> Any: ...


# The last part of a step's path, and its body.
Step = tuple[str, dict[str, Any]]


def _claim(user: int) -> Step:
    return "claim", {"user": f"{READER}{user}"}


def _submit(user: int, submission: str) -> Step:
    return "submit", {"user": f"{READER}{user}", "submission": submission}


def _attest(user: int, rating: int, comments: str) -> Step:
    return "attestations", {"user": f"{READER}{user}", "rating": rating, "comments": comments}


def _dispute(user: int, reason: str) -> Step:
    return "dispute", {"user": f"{READER}{user}", "reason": reason}


@dataclass(frozen=True)
class FirstQuest:
    """A quest of the start, and the steps that were taken on it."""

    creator: int
    title: str
    description: str
    xp: int
    reputation: int
    tags: Sequence[str]
    steps: Sequence[Step] = ()
    requirements: Sequence[str] = ()
    attestations_required: int | None = None
    open_for: timedelta | None = None

    def body(self, now: datetime) -> dict[str, Any]:
        body: dict[str, Any] = {
            "user": f"{READER}{self.creator}",
            "title": self.title,
            "description": self.description,
            "reward_xp": self.xp,
            "reward_reputation": self.reputation,
            "tags": [*self.tags, TAG],
            "requirements": list(self.requirements),
        }
        if self.attestations_required is not None:
            body["attestations_required"] = self.attestations_required
        if self.open_for is not None:
            body["expires_at"] = (now + self.open_for).isoformat()
        return body


FIRST_QUESTS = [
    FirstQuest(
        11, "Write an on-call checklist", "One page: what to look at in the first ten minutes of an alert.",
        250, 10, ["docs", "engineering"], requirements=["was on call at least once"],
    ),
    FirstQuest(
        27, "Translate the welcome page into Spanish", "All sections, with the same headings as the English page.",
        300, 12, ["translation", "handbook"], requirements=["speaks Spanish"], open_for=timedelta(days=21),
    ),
    FirstQuest(
        42, "Find the broken links of the handbook", "Go through every page and list the links that lead nowhere.",
        80, 3, ["review", "handbook"],
    ),
    FirstQuest(
        58, "Record a tour of the search service", "Five minutes of video for new colleagues, with captions.",
        600, 20, ["video", "engineering"], attestations_required=2, open_for=timedelta(days=45),
    ),
    FirstQuest(
        73, "Draw how an invoice is made", "A diagram from the order to the e-mail, for the support space.",
        180, 8, ["images", "support"],
    ),
    FirstQuest(
        89, "Collect ten questions about single sign-on", "From last month's tickets, each with its answer.",
        220, 9, ["docs", "support"], steps=[_claim(104)],
    ),
    FirstQuest(
        118, "Update the screenshots of the mobile apps", "Those of the old navigation, on both platforms.",
        120, 5, ["images", "engineering"], steps=[_claim(131)], open_for=timedelta(days=30),
    ),
    FirstQuest(
        146, "Explain feature flags in plain words", "For colleagues who do not write code: what, why, who decides.",
        150, 6, ["docs", "engineering"],
        steps=[_claim(162), _submit(162, "The page has three examples now, and a list of who to ask.")],
    ),
    FirstQuest(
        177, "Test the restore of a deleted project", "Follow our page step by step and note where it is wrong.",
        400, 15, ["review", "support"], attestations_required=2,
        steps=[
            _claim(193), _submit(193, "Two steps were out of date: I corrected both, with new screenshots."),
            _attest(208, 5, "I tried it after you: it works."),
        ],
    ),
    FirstQuest(
        224, "Write up the last retrospective", "What we decided, who does it, and until when.",
        90, 4, ["docs", "handbook"],
        steps=[_claim(239), _submit(239, "Written up below the notes of the meeting.")],
    ),
    FirstQuest(
        255, "Answer the oldest open question about webhooks", "It has waited for a month; include a working example.",
        200, 8, ["support"],
        steps=[
            _claim(270), _submit(270, "Answered, with a small receiver that checks the signature."),
            _attest(255, 5, "That is what I needed, thank you!"),
        ],
    ),
    FirstQuest(
        286, "Review the guide to hiring interviews", "Is it still how we do it? Suggest what to remove.",
        520, 18, ["review", "handbook"],
        steps=[
            _claim(301), _submit(301, "I removed two sections and shortened the rest; see the page's history."),
            _attest(317, 4, "Much better. The part about feedback could be longer."),
        ],
    ),
    FirstQuest(
        332, "Compare our three ways to run migrations", "A table: when to use which, and what may go wrong.",
        350, 14, ["docs", "engineering"],
        steps=[
            _claim(348), _submit(348, "The table is on the page; the text follows."),
            _dispute(332, "The table has two of the three ways, and the risks are missing."),
        ],
    ),
]  # fmt: skip


def seed(api: Api) -> None:
    """Create the quests of the start where they are missing, and take those of their steps that were not taken yet.

    What is refused is left out. Raises whatever else an API call does: the caller tries again.
    """
    listed = _attempt(api, "GET", f"{QUESTS}?{urllib.parse.urlencode({'tag': TAG, 'limit': MAX_LISTED})}")
    if listed is None:  # this tenant has no quests
        return
    known = {quest["title"]: quest for quest in listed["items"]}
    for first in FIRST_QUESTS:
        quest = known.get(first.title) or _attempt(api, "POST", QUESTS, first.body(datetime.now(UTC)))
        # Creating it made version 1, and every step one more.
        for name, body in first.steps[quest["version"] - 1 :] if quest else ():
            if _attempt(api, "POST", f"{QUESTS}/{quest['id']}/{name}", body) is None:
                break


@dataclass(frozen=True)
class Kind:
    """A kind of quest about a page, as readers offer them all the time."""

    title: str
    description: str
    tag: str
    submission: str


KINDS = [
    Kind("Update “{}”", "Parts of the page are out of date: bring it up to today.", "docs", "Updated, and shortened."),
    Kind("Translate “{}”", "Into a language of your choice, as a page beside it.", "translation", "Translated."),
    Kind("Add pictures to “{}”", "Two or three that show what the text describes.", "images", "Added three pictures."),
    Kind("Check “{}”", "Try every step of the page, and follow every link.", "review", "Checked; two links repaired."),
]
COMMENTS = ["Thank you!", "Well done.", "Good work, easy to follow.", "Just what the page needed.", ""]


@dataclass
class Players:
    """The demo's readers, who offer, claim, submit and attest quests about these pages (by title)."""

    api: Api
    pages: Sequence[str]
    readers: int
    rng: random.Random

    def take_step(self, *, now: datetime) -> None:
        """One step of somebody, or none if there is nothing to do."""
        steps: list[Callable[[datetime], None]] = [self.create, self.claim, self.submit, self.attest]
        # Each is taken more often than the one before, so that no state fills up.
        self.rng.choices(steps, [3, 4, 5, 6])[0](now)

    def create(self, now: datetime) -> None:
        if len(self._in("OPEN")) >= MAX_OPEN:
            return
        kind = self.rng.choice(KINDS)
        body = {
            "user": self._anybody(),
            "title": kind.title.format(self.rng.choice(self.pages)),
            "description": kind.description,
            "reward_xp": self.rng.randrange(30, 310, 10),
            "reward_reputation": self.rng.randint(1, 10),
            "tags": [kind.tag],
            "expires_at": (now + timedelta(days=self.rng.randint(7, 30))).isoformat(),
        }
        _attempt(self.api, "POST", QUESTS, body)

    def claim(self, now: datetime) -> None:
        self._step("OPEN", now, lambda quest: ("claim", {"user": self._anybody(but=quest["creator"])}))

    def submit(self, now: datetime) -> None:
        """By the readers themselves: what others have claimed is theirs."""

        def submission(quest: dict[str, Any]) -> Step:
            said = [kind.submission for kind in KINDS if kind.tag in quest["tags"]] or ["Done as described."]
            return "submit", {"user": quest["performer"]["external_id"], "submission": said[0]}

        self._step("CLAIMED", now, submission, which=lambda quest: _is_reader(quest["performer"]))

    def attest(self, now: datetime) -> None:
        """By anybody, so that no two attest each other again and again."""

        def attestation(quest: dict[str, Any]) -> Step:
            rating = self.rng.choices([3, 4, 5], [1, 4, 6])[0]
            user = self._anybody(but=quest["performer"])
            return "attestations", {"user": user, "rating": rating, "comments": self.rng.choice(COMMENTS)}

        self._step("PENDING_REVIEW", now, attestation)

    def _step(
        self,
        status: str,
        now: datetime,
        step: Callable[[dict[str, Any]], Step],
        *,
        which: Callable[[dict[str, Any]], bool] = lambda _: True,
    ) -> None:
        """Take a step on one of the quests in this state, if there are more than the demo keeps."""
        quests = self._in(status)
        rested = [quest for quest in quests if datetime.fromisoformat(quest["updated_at"]) <= now - REST]
        possible = [quest for quest in rested if which(quest)]
        if len(quests) > KEPT[status] and possible:
            quest = self.rng.choice(possible)
            name, body = step(quest)
            _attempt(self.api, "POST", f"{QUESTS}/{quest['id']}/{name}", body)

    def _in(self, status: str) -> list[dict[str, Any]]:
        listed = _attempt(self.api, "GET", f"{QUESTS}?status={status}&limit={MAX_LISTED}")
        return listed["items"] if listed else []

    def _anybody(self, *, but: dict[str, Any] | None = None) -> str:
        while True:
            reader = f"{READER}{self.rng.randrange(self.readers)}"
            if but is None or but["external_id"] != reader:
                return reader


def _is_reader(person: dict[str, Any] | None) -> bool:
    return person is not None and (person["external_id"] or "").startswith(READER)


def _attempt(api: Api, method: str, path: str, body: Any = None) -> Any:
    """The answer, or None if the call is refused."""
    try:
        return api.call(method, path, body)
    except urllib.error.HTTPError as error:
        if error.code not in REFUSED:
            raise
        error.close()
        return None
