"""The files for Prometheus and Grafana in docs/: they name metrics and labels that exist, and promtool accepts them."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from flask.testing import FlaskClient
from prometheus_client import REGISTRY
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.parser import text_string_to_metric_families

from tests.rules.test_docs import import_everything
from tests.service import ROOT

ALERTS, DASHBOARD = ROOT / "docs" / "prometheus-alerts.yml", ROOT / "docs" / "grafana-dashboard.json"
ALERTS_TEST = Path(__file__).with_name("prometheus-alerts-test.yml")
PROMTOOL = shutil.which("promtool")
# Those that Prometheus adds, and the bound of a histogram's bucket.
ANYWHERE = {"instance", "job", "le"}

needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="no promtool on this machine (Debian: package prometheus)")


@pytest.fixture
def scraped(client: FlaskClient) -> str:
    """A scrape of an application that has every metric."""
    import_everything()
    client.get("/health/live")
    return client.get("/metrics").text


def sample_names(scraped: str) -> set[str]:
    """The names under which the metrics of a scrape can be asked for."""
    suffixes = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"], "gauge": [""]}
    return {
        family.name + suffix
        for family in text_string_to_metric_families(scraped)
        for suffix in suffixes.get(family.type, [])
    }


def labels_by_name(scraped: str) -> dict[str, set[str]]:
    """The labels of each metric, by the name of its samples without a suffix."""
    labels = {
        sample.name: {*sample.labels} for one in text_string_to_metric_families(scraped) for sample in one.samples
    }
    for collector in REGISTRY._collector_to_names:
        if isinstance(collector, MetricWrapperBase):
            labels[collector._name] = {*collector._labelnames}
    return labels


def expressions() -> Iterator[str]:
    dashboard = json.loads(DASHBOARD.read_text())
    for panel in dashboard["panels"]:
        yield from (target["expr"] for target in panel["targets"])
    yield from (variable["definition"] for variable in dashboard["templating"]["list"] if "definition" in variable)
    for block, line in re.findall(r"expr: (?:\|\n((?: {10}.*\n)+)|(.*))", ALERTS.read_text()):
        yield block or line


def used_labels(expression: str) -> set[str]:
    in_braces = [part for braces in re.findall(r"\{([^}]*)\}", expression) for part in braces.split(",")]
    grouped = [part for names in re.findall(r"\bby \(([^)]*)\)", expression) for part in names.split(",")]
    return {re.split(r"[=!~]", part.strip())[0] for part in (*in_braces, *grouped)}


def test_alerts_and_dashboard_name_only_metrics_and_labels_that_exist(scraped: str) -> None:
    exist, labels = sample_names(scraped), labels_by_name(scraped)
    used: set[str] = set()
    for expression in expressions():
        names = set(re.findall(r"plaudit_\w+", expression))
        assert names <= exist, expression
        known = {label for name in names for label in labels.get(re.sub(r"_(total|bucket|sum|count)$", "", name), ())}
        known |= {label for name in names for label in labels.get(name, ())}
        assert used_labels(expression) <= known | ANYWHERE, expression
        used |= names
    assert {"plaudit_board_lag_seconds", "plaudit_queue_depth", "plaudit_build_info"} <= used


def promtool(*arguments: str, stdin: str = "") -> str:
    done = subprocess.run([str(PROMTOOL), *arguments], input=stdin, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@needs_promtool
def test_promtool_has_nothing_to_say_against_the_metrics(scraped: str) -> None:
    ours = "".join(line + "\n" for line in scraped.splitlines() if "plaudit_" in line)
    assert promtool("check", "metrics", stdin=ours) == ""


@needs_promtool
def test_promtool_accepts_the_alerts_and_each_fires_when_it_should(scraped: str) -> None:
    alerts = re.findall(r"- alert: (\w+)", ALERTS.read_text())
    assert f"{len(alerts)} rules found" in promtool("check", "rules", str(ALERTS))
    promtool("test", "rules", str(ALERTS_TEST))
    assert {*re.findall(r'alertname="(\w+)"', ALERTS_TEST.read_text())} == {*alerts}, "each is tried"
