"""`make sbom` lists every package that the service runs on, with its version and licence."""

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from app.run import sbom
from tenants.db import utcnow
from tests.service import ROOT


def test_every_installed_package_of_the_lock_is_listed_with_its_version_and_licence(tmp_path: Path) -> None:
    file = tmp_path / "new" / "sbom.json"
    command = [sys.executable, "-m", "app.run.sbom", str(file)]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    listed = json.loads(file.read_text())
    components = {one["name"]: one for one in listed["components"]}
    lock = [
        Requirement(line.rstrip(" \\")) for line in (ROOT / "requirements.txt").read_text().splitlines() if "==" in line
    ]
    needed = {one.name for one in lock if one.marker is None or one.marker.evaluate()}
    assert needed == components.keys()
    assert {name: one["version"] for name, one in components.items()} == {name: version(name) for name in needed}
    assert [name for name, one in components.items() if not one.get("licenses")] == []
    assert said.startswith(f"Wrote {file}: {len(needed)} components.\n")
    assert f"  {sum(one['licenses'] == [{'expression': 'MIT'}] for one in components.values()):4}  MIT\n" in said
    assert (listed["bomFormat"], listed["specVersion"]) == ("CycloneDX", "1.6")
    assert listed["metadata"]["component"]["licenses"] == [{"expression": "MIT"}]


def test_what_needs_what_is_listed() -> None:
    packages = sbom.installed((ROOT / "requirements.txt").read_text().splitlines())
    listed = sbom.document(packages, now=utcnow())
    references = {one["bom-ref"] for one in listed["components"]}
    needs = {one["ref"]: set(one["dependsOn"]) for one in listed["dependencies"]}
    assert needs.keys() == references | {listed["metadata"]["component"]["bom-ref"]}
    assert set().union(*needs.values()) <= references
    assert f"pkg:pypi/werkzeug@{version('werkzeug')}" in needs[f"pkg:pypi/flask@{version('flask')}"]


def test_a_package_that_is_missing_is_named() -> None:
    with pytest.raises(SystemExit, match=r"no-such-package is in requirements\.txt and not installed"):
        sbom.installed(["no-such-package==1.0 \\", "    --hash=sha256:00"])
    assert sbom.installed(["no-such-package==1.0 ; sys_platform == 'never' \\"]) == []
