"""The texts that people read for the names in our own tables: reasons, scopes, rules and so on.

Windows and metrics have their labels in their own tables. The dashboard's page carries all of them as JSON
(`dashboard_names`), so no script repeats a table of the server. The order of a table is the order on screen. Every name
must have a text: a test checks the tables.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

from analytics.boards import spaces
from analytics.boards.series import Step
from analytics.ingest.pages import Visibility
from analytics.ingest.reasons import Reason
from analytics.metrics import LIKES, METRICS, POINTS, REPUTATION, SCORE, VIEWS, XP, Counted, Metric
from analytics.quests import states
from analytics.quests.rewards import PaymentState, Reward
from analytics.quests.states import MOVES, Roles, Status
from analytics.scores.catalog import Terms
from analytics.scores.integrity import Rule, State, Verdict
from analytics.windows import Window
from app.http.paging import MAX_SLICE
from tenants.credentials import Scope

STEP_LABELS = {Step.HOUR: "Hourly", Step.DAY: "Daily"}
WEIGHT_LABELS = {LIKES.name: "Weight of a like", VIEWS.name: "Weight of views"}

# Each continues "An event that…".
REJECTION_TEXTS = {
    Reason.UNKNOWN_PAGE: "names a page that does not exist",
    Reason.UNKNOWN_TYPE: "is of an unknown type",
    Reason.INVALID: "is not well formed",
    Reason.TOO_OLD: "happened too long ago",
    Reason.IN_THE_FUTURE: "has not happened yet",
    Reason.UNKNOWN_ACTION: "names an action that is not in the catalog",
    Reason.LIMITED: "was over a limit",
    Reason.BOT: "came from a robot",
}
VISIBILITY_TEXTS = {
    Visibility.PRIVATE: "Private: who may see private pages",
    Visibility.PUBLIC: "Public: also anybody with a publishable key",
}
SCOPE_TEXTS = {
    Scope.PAGES_WRITE: "create, change and delete pages",
    Scope.EVENTS_WRITE: "send views, likes and actions",
    Scope.EVENTS_BACKFILL: "send events of any age",
    Scope.STATS_READ: "read boards and numbers",
    Scope.USERS_WRITE: "reset passwords, export and erase people",
    Scope.ACTIONS_WRITE: "issue action tokens",
    Scope.QUESTS_WRITE: "create quests, and take part for people",
    Scope.ADMIN: "everything an admin may do",
}
# The names in braces are those of the flag's details.
RULE_TEXTS = {
    Rule.POINTS_PER_HOUR: "{points} points within an hour; the limit is {most}",
    Rule.IMPOSSIBLE_CLOCK: "Claimed an action {seconds_ahead} seconds in the future",
    Rule.ATTESTATION_RING: "Quests attested by friends: {quests}",
}


class VerdictText(NamedTuple):
    verdict: Verdict
    label: str
    question: str


_REVERSE = VerdictText(Verdict.REVERSE, "Reverse", "Take back the payments to {name} that this flag names?")
# What an admin can decide about a flag in each state; a resolved one has nothing left to decide.
FLAG_VERDICTS = {
    State.OPEN: (
        VerdictText(Verdict.DISMISS, "Dismiss", "Dismiss this flag? {name} keeps the points."),
        VerdictText(Verdict.SUSPEND, "Suspend", "Suspend {name}? They are signed out, and leave the boards."),
        _REVERSE,
    ),
    State.SUSPENDED: (
        VerdictText(Verdict.DISMISS, "Lift suspension", "Lift the suspension of {name}?"),
        _REVERSE,
    ),
}


class FieldText(NamedTuple):
    label: str
    summary: str = ""  # how the list of actions states it, if it is set
    placeholder: str = ""


ACTION_FIELDS = {
    "points": FieldText("Points"),
    "daily_cap": FieldText("Maximum points per day", "at most {value} points a day", "no limit"),
    "daily_limit": FieldText("Maximum times per day", "at most {value} times a day", "no limit"),
    "cooldown_s": FieldText("Cooldown (seconds)", "every {value} s", "none"),
    "once_per_object": FieldText("Once for each object", "once for each object"),
    "requires_token": FieldText("Only with an action token", "with a token"),
    "enabled": FieldText("Enabled"),
}
NEW_ACTION_POINTS = 10

# The numbers of a person that the API's answer has, by its field.
PERSON_FIGURES = {
    "score": POINTS.label,
    "total_actions": "Actions",
    "experience_points": XP.label,
    "reputation": REPUTATION.label,
    "quests_completed": "Quests completed",
}
QUEST_STATUS_LABELS = {
    Status.OPEN: "Open",
    Status.CLAIMED: "Claimed",
    Status.PENDING_REVIEW: "In review",
    Status.COMPLETE: "Complete",
    Status.DISPUTED: "Disputed",
    Status.EXPIRED: "Expired",
    Status.CANCELLED: "Cancelled",
}
REWARD_STATE_TEXTS = {
    PaymentState.OWED: "owed",
    PaymentState.PAID: "paid",
    PaymentState.FAILED: "could not be paid",
    PaymentState.REVERSED: "taken back",
}


class StepText(NamedTuple):
    done: str  # how the history states it; "by" and a name follow
    label: str = ""  # of the button; nobody takes a step without one by hand


# In the order of the buttons.
QUEST_STEP_TEXTS = {
    states.Step.CREATE: StepText("Offered"),
    states.Step.CLAIM: StepText("Claimed", "Claim this quest"),
    states.Step.SUBMIT: StepText("Submitted", "Submit your work"),
    states.Step.ATTEST: StepText("Attested", "Attest this work"),
    states.Step.RESOLVE: StepText("Dispute resolved", "Resolve the dispute"),
    states.Step.WITHDRAW: StepText("Submission withdrawn", "Withdraw the submission"),
    states.Step.RELEASE: StepText("Given back", "Give the quest back"),
    states.Step.DISPUTE: StepText("Disputed", "Dispute this work"),
    states.Step.CANCEL: StepText("Cancelled", "Cancel the quest"),
    states.Step.EXPIRE: StepText("Expired"),
}
QUEST_RESOLUTION_LABELS = {
    Status.COMPLETE: "The work is good: complete the quest and pay",
    Status.OPEN: "Open it again, for a new round",
    Status.CANCELLED: "Cancel the quest",
}


def dashboard_names() -> dict[str, Any]:
    """The tables that the dashboard's scripts need, as JSON."""
    return {
        "windows": [
            {"name": window.value, "label": window.label, "is_sliding": window.length is not None} for window in Window
        ],
        "metrics": [_metric(metric) for metric in METRICS.values()],
        "defaults": {
            "window": Window.WEEK.value,
            "page_metric": SCORE.name,
            "user_metric": POINTS.name,
            "series_step": Step.DAY.value,
        },
        "spaces": {
            "window": spaces.WINDOW.value,
            # The list is ordered by the first.
            "counts": [{"name": name, "label": metric.label} for name, metric in spaces.COUNTS.items()],
        },
        "max_slice": MAX_SLICE,
        "series_steps": [
            {
                "name": step.value,
                "label": f"{label}, {step.usual_window.label}",
                "seconds": int(step.length.total_seconds()),
            }
            for step, label in STEP_LABELS.items()
        ],
        "weights": _entries(WEIGHT_LABELS),
        "rejection_reasons": {reason.value: text for reason, text in REJECTION_TEXTS.items()},
        "visibilities": _entries(VISIBILITY_TEXTS),
        "client_scopes": _entries(SCOPE_TEXTS),
        "flag_rules": {rule.value: text for rule, text in RULE_TEXTS.items()},
        "flag_verdicts": {
            state.value: [
                {"name": text.verdict.value, "label": text.label, "question": text.question} for text in verdicts
            ]
            for state, verdicts in FLAG_VERDICTS.items()
        },
        "action_fields": [_action_field(field) for field in dataclasses.fields(Terms)],
        "person_figures": _entries(PERSON_FIGURES),
        "quests": _quests(),
    }


def _quests() -> dict[str, Any]:
    return {
        "open": Status.OPEN.value,
        "disputed": Status.DISPUTED.value,
        "statuses": {status.value: QUEST_STATUS_LABELS[status] for status in Status},
        "steps": [
            {"name": step.value, **text._asdict(), "allowed": _allowed(step)} for step, text in QUEST_STEP_TEXTS.items()
        ],
        "resolutions": _entries(QUEST_RESOLUTION_LABELS),
        "rewards": {reward.value: reward.metric.label for reward in Reward},
        "reward_states": {state.value: REWARD_STATE_TEXTS[state] for state in PaymentState},
    }


def _allowed(step: states.Step) -> dict[str, list[int]]:
    """In which state who may take the step by hand: 1 for the creator, 2 for the performer, 4 for an admin, added."""
    if not QUEST_STEP_TEXTS[step].label:
        return {}
    roles = {
        number: Roles(is_creator=bool(number & 1), is_performer=bool(number & 2), is_admin=bool(number & 4))
        for number in range(8)
    }
    return {
        status.value: [number for number, role in roles.items() if move.who.allows(role)]
        for status, move in MOVES[step].items()
    }


def _metric(metric: Metric) -> dict[str, Any]:
    return {
        "name": metric.name,
        "label": metric.label,
        "note": metric.note,
        "subject": "user" if metric.is_of_users else "page",
        "is_counted": isinstance(metric.source, Counted),
    }


def _action_field(field: "dataclasses.Field[Any]") -> dict[str, Any]:
    text = ACTION_FIELDS[field.name]
    return {
        "name": field.name,
        "type": "checkbox" if field.type is bool else "number",
        "default": NEW_ACTION_POINTS if field.name == "points" else field.default,
        **text._asdict(),
    }


def _entries(labels: Mapping[Any, str]) -> list[dict[str, str]]:
    return [{"name": str(name), "label": label} for name, label in labels.items()]
