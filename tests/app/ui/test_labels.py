"""Every name of the server's tables has a text, and the dashboard's scripts take both from the server."""

import dataclasses
import json
import re
from collections.abc import Collection
from enum import StrEnum
from importlib.resources import files

import pytest
from flask.testing import FlaskClient

from analytics.boards.series import Step
from analytics.ingest.pages import Visibility
from analytics.ingest.reasons import Reason
from analytics.metrics import METRICS, counted_metrics, page_columns
from analytics.quests.rewards import PaymentState
from analytics.quests.states import Status
from analytics.quests.states import Step as QuestStep
from analytics.scores.catalog import Terms
from analytics.scores.integrity import Rule, Verdict
from analytics.windows import Window
from app.api.weights import WeightsIn
from app.ui import labels
from app.ui.assets import assets
from tenants.credentials import Scope


@pytest.mark.parametrize(
    ("table", "texts"),
    [
        (Step, labels.STEP_LABELS),
        (Reason, labels.REJECTION_TEXTS),
        (Scope, labels.SCOPE_TEXTS),
        (Visibility, labels.VISIBILITY_TEXTS),
        (Rule, labels.RULE_TEXTS),
        (Status, labels.QUEST_STATUS_LABELS),
        (QuestStep, labels.QUEST_STEP_TEXTS),
        (PaymentState, labels.REWARD_STATE_TEXTS),
        (Verdict, {one.verdict for verdicts in labels.FLAG_VERDICTS.values() for one in verdicts}),
    ],
)
def test_every_name_has_a_text(table: type[StrEnum], texts: Collection[str]) -> None:
    assert set(texts) == set(table)


def test_every_field_of_an_action_and_every_weight_has_a_text() -> None:
    assert set(labels.ACTION_FIELDS) == {field.name for field in dataclasses.fields(Terms)}
    assert set(labels.WEIGHT_LABELS) == {name for name in WeightsIn().fields if name in METRICS}


def test_the_dashboards_page_carries_the_names(client: FlaskClient) -> None:
    found = re.search(r'<script type="application/json" id="names">(.*?)</script>', client.get("/dashboard").text)
    assert found is not None
    names = json.loads(found[1])
    assert names == labels.dashboard_names()
    assert {one["name"] for one in names["metrics"] if one["is_counted"]} == {
        metric.name for metric in counted_metrics()
    }
    assert [one["name"] for one in names["action_fields"] if one["type"] == "checkbox"] == [
        "once_per_object",
        "requires_token",
        "enabled",
    ]


def test_no_script_of_the_dashboard_repeats_a_name_of_the_server() -> None:
    tables: list[type[StrEnum]] = [Window, Reason, Scope, Rule, Verdict]
    names = {name.value for table in tables for name in table} | set(METRICS) | set(labels.ACTION_FIELDS)
    names -= {Scope.ADMIN.value}  # also a role
    names -= {"enabled", "points"}  # fields of an answer too, which scripts read one by one
    quoted = "|".join(f"[\"'`]{re.escape(name)}[\"'`]" for name in sorted(names))
    repeated = re.compile(rf"{quoted}|\b({'|'.join(page_columns())})\b")
    scripts = assets().scripts("dashboard")
    assert len(scripts) > 15
    folder = files("app.ui").joinpath("static", "assets")
    for script in scripts:
        for number, line in enumerate(folder.joinpath(script).read_text().splitlines(), 1):
            assert repeated.search(line) is None, f"{script}:{number}: {line.strip()}"
