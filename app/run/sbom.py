"""`make sbom`: a CycloneDX list of what the service runs on: every package of requirements.txt that is installed here.

Read from the packages' own metadata, so it needs no network and no tool: what is listed is what runs. The servers and
libraries inside of wheels (PostgreSQL, Valkey, libpq, OpenSSL) are named by their wheels.
"""

import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any
from uuid import uuid4

import click
from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
# What older packages write instead of an SPDX identifier. Other words stay as they are.
SPDX = {
    "apache 2.0": "Apache-2.0",
    "apache license 2.0": "Apache-2.0",
    "apache license, version 2.0": "Apache-2.0",
    "apache software license": "Apache-2.0",
    "bsd-3-clause license": "BSD-3-Clause",
    "isc license (iscl)": "ISC",
    "mit license": "MIT",
    "mozilla public license 2.0 (mpl 2.0)": "MPL-2.0",
    "the mit license (mit)": "MIT",
}
MAX_LICENSE_CHARS = 100


def main() -> None:
    target = Path(sys.argv[1])
    found = installed((ROOT / "requirements.txt").read_text().splitlines())
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(document(found, now=datetime.now(UTC)), indent=2) + "\n")
    licences = Counter(license_of(package) or "unknown" for package in found)
    click.echo(f"Wrote {target}: {len(found)} components.")
    for name, count in sorted(licences.items(), key=lambda counted: (-counted[1], counted[0])):
        click.echo(f"  {count:4}  {name}")


def installed(lock: Iterable[str]) -> list[Distribution]:
    """The packages of a lock file that this machine needs, by name, as they are installed."""
    found = []
    for line in lock:
        if line[:1].isalnum():
            needed = Requirement(line.rstrip(" \\"))
            if needed.marker is None or needed.marker.evaluate():
                try:
                    found.append(distribution(needed.name))
                except PackageNotFoundError:
                    message = f"{needed.name} is in requirements.txt and not installed: run make install"
                    raise SystemExit(message) from None
    return sorted(found, key=_name)


def document(packages: Iterable[Distribution], *, now: datetime) -> dict[str, Any]:
    """The list, by CycloneDX 1.6. See https://cyclonedx.org/docs/1.6/json/."""
    own = distribution("plaudit")
    known = {_name(package): package for package in packages}
    everything = {_name(own): own, **known}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid4()}",
        "version": 1,
        "metadata": {
            "timestamp": now.isoformat(timespec="seconds"),
            "component": {**_component(own), "type": "application"},
        },
        "components": [_component(package) for package in known.values()],
        "dependencies": [
            {"ref": _reference(package), "dependsOn": [_reference(known[name]) for name in _needs(package, known)]}
            for package in everything.values()
        ],
    }


def license_of(package: Distribution) -> str | None:
    """The SPDX expression that a package declares, or else its own words; None if it declares nothing."""
    metadata = package.metadata
    classifiers = [one for one in metadata.get_all("Classifier") or [] if one.startswith("License :: ")]
    words: list[str | None] = [metadata["License-Expression"], metadata["License"]]
    words += [" AND ".join(SPDX.get(name.lower(), name) for name in (one.split(" :: ")[-1] for one in classifiers))]
    words += [_title_of(package, file) for file in metadata.get_all("License-File") or []]
    said = [word.strip() for word in words if word and word.strip() not in {"", "UNKNOWN"}]
    # Some have the whole text there.
    short = [SPDX.get(word.lower(), word) for word in said if len(word) <= MAX_LICENSE_CHARS and "\n" not in word]
    return next((word for word in short if _is_spdx(word)), short[0] if short else None)


def _component(package: Distribution) -> dict[str, Any]:
    component = {
        "type": "library",
        "bom-ref": _reference(package),
        "name": _name(package),
        "version": package.version,
        "purl": _reference(package),
    }
    license_ = license_of(package)
    if license_ is None:
        return component
    return {
        **component,
        "licenses": [{"expression": license_} if _is_spdx(license_) else {"license": {"name": license_}}],
    }


def _title_of(package: Distribution, file: str) -> str | None:
    """The first line of a licence's file, which is often its name."""
    found = [one for one in package.files or [] if one.as_posix().endswith(f".dist-info/licenses/{file}")]
    lines = found[0].read_text(encoding="utf-8").strip().splitlines() if found else []
    return lines[0] if lines else None


def _needs(package: Distribution, known: dict[str, Distribution]) -> Iterator[str]:
    """The names of the listed packages that this one requires here, without those of its extras."""
    needed = {Requirement(one) for one in package.requires or []}
    names = {canonicalize_name(one.name) for one in needed if one.marker is None or one.marker.evaluate({"extra": ""})}
    yield from sorted(names & known.keys())


def _is_spdx(words: str) -> bool:
    try:
        canonicalize_license_expression(words)
    except InvalidLicenseExpression:
        return False
    return True


def _name(package: Distribution) -> str:
    return canonicalize_name(package.metadata["Name"])


def _reference(package: Distribution) -> str:
    return f"pkg:pypi/{_name(package)}@{package.version}"


if __name__ == "__main__":
    main()
