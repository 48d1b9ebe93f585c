"""The documentation names everything that it claims to list completely, and its links lead somewhere."""

import importlib
import pkgutil
import re
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY

from analytics.scraping import ServiceGauges
from app.http import errors
from tenants.errors import DomainError
from tenants.settings import TenantSettings
from tests.service import ROOT

TOP = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
DOCS = [*(ROOT / name for name in TOP), *sorted((ROOT / "docs").glob("*.md"))]
GUIDE, OPERATING = ROOT / "docs" / "guide.md", ROOT / "docs" / "operating.md"
MAX_README_LINES = 150
# Refusals of commands, which print the sentence and not the code.
ONLY_ON_THE_COMMAND_LINE = {"check_stopped", "import_running", "projection_busy", "tenant_exists"}
NOT_ANSWERED = {"error", "no_payee", "taken_back"}  # the base class; why a reward has failed


def import_everything() -> None:
    for name in ("tenants", "analytics", "app"):
        package = importlib.import_module(name)
        for module in pkgutil.walk_packages(package.__path__, prefix=f"{name}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)


def error_codes(family: type[DomainError]) -> set[str]:
    own = set() if family.__module__.startswith("tests.") else {family.code}
    return own.union(*map(error_codes, family.__subclasses__()))


def setting_names(settings: Any, prefix: str = "") -> set[str]:
    names: set[str] = set()
    for entry in fields(settings):
        value, path = getattr(settings, entry.name), f"{prefix}{entry.name}"
        names |= setting_names(value, f"{path}.") if is_dataclass(value) else {path}
    return names


def missing(names: set[str], file: Path) -> set[str]:
    """Those that do not stand in backticks in the file."""
    return names - set(re.findall(r"`([\w.]+)`", file.read_text()))


def test_every_error_code_is_in_the_guide() -> None:
    import_everything()
    codes = error_codes(DomainError) | set(errors.CODE_OF_STATUS.values())
    rare = ONLY_ON_THE_COMMAND_LINE | NOT_ANSWERED | {"not_acceptable", "timeout"}  # Flask's, which no route raises
    assert missing(codes - rare, GUIDE) == set()


def test_every_tenant_setting_is_in_the_guide() -> None:
    assert missing(setting_names(TenantSettings()), GUIDE) == set()


def test_every_environment_variable_is_in_the_operators_table() -> None:
    names = set(re.findall(r'"([A-Z][A-Z_]+)"', (ROOT / "app" / "settings.py").read_text()))
    assert len(names) > 10
    assert missing(names, OPERATING) == set()


def test_every_metric_is_in_the_operators_table(connected: None) -> None:
    import_everything()
    names = {
        metric.name if metric.type != "counter" else f"{metric.name}_total"
        for metric in (*REGISTRY.collect(), *ServiceGauges().collect())
        if metric.name.startswith("plaudit_")
    }
    assert len(names) > 10
    assert missing(names, OPERATING) == set()


@pytest.mark.parametrize("file", DOCS, ids=lambda file: file.name)
def test_links_lead_somewhere(file: Path) -> None:
    for link in re.findall(r"\]\(([^)]+)\)", without_code(file)):
        path, _, anchor = link.partition("#")
        target = file.parent / path if path else file
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("name", ["architecture.md", "security.md"])
def test_tests_that_are_named_exist(name: str) -> None:
    """Below `tests/`, as in the tables of promises, or with it."""
    named = re.findall(r"`(?:tests/)?((?:\w+/)*test_\w+\.py)`", (ROOT / "docs" / name).read_text())
    assert len(named) > 10
    assert [path for path in named if not any((ROOT / "tests").rglob(path))] == []


def without_code(file: Path) -> str:
    return re.sub(r"```.*?```", "", file.read_text(), flags=re.DOTALL)


def anchors(file: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", without_code(file), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_readme_stays_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= MAX_README_LINES
