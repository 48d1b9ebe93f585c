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
from analytics.ingest.reasons import Reason
from analytics.metrics import LIKES, METRICS, POINTS, SCORE, VIEWS, Counted, Metric
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
SCOPE_TEXTS = {
    Scope.PAGES_WRITE: "create, change and delete pages",
    Scope.EVENTS_WRITE: "send views, likes and actions",
    Scope.EVENTS_BACKFILL: "send events of any age",
    Scope.STATS_READ: "read boards and numbers",
    Scope.USERS_WRITE: "reset passwords, export and erase people",
    Scope.ACTIONS_WRITE: "issue action tokens",
    Scope.QUESTS_WRITE: "run quests",
    Scope.ADMIN: "everything an admin may do",
}
# The names in braces are those of the flag's details.
RULE_TEXTS = {
    Rule.POINTS_PER_HOUR: "{points} points within an hour; the limit is {most}",
    Rule.IMPOSSIBLE_CLOCK: "Claimed an action {seconds_ahead} seconds in the future",
}


class VerdictText(NamedTuple):
    verdict: Verdict
    label: str
    question: str


_REVERSE = VerdictText(Verdict.REVERSE, "Reverse", "Take back the points that {name} got in the flagged hour?")
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
        "client_scopes": _entries(SCOPE_TEXTS),
        "flag_rules": {rule.value: text for rule, text in RULE_TEXTS.items()},
        "flag_verdicts": {
            state.value: [
                {"name": text.verdict.value, "label": text.label, "question": text.question} for text in verdicts
            ]
            for state, verdicts in FLAG_VERDICTS.items()
        },
        "action_fields": [_action_field(field) for field in dataclasses.fields(Terms)],
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


def _entries(labels: "Mapping[str, str] | Mapping[Scope, str]") -> list[dict[str, str]]:
    return [{"name": str(name), "label": label} for name, label in labels.items()]
