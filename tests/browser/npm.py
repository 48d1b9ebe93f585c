"""Files of npm packages that a test's site serves: deno gets them, into its cache below .venv. None is committed."""

import hashlib
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

DENO = Path(sys.executable).parent / "deno"
CACHE = Path(sys.prefix) / ".deno"


@dataclass(frozen=True)
class NpmFile:
    """One file of a package, exactly as it was when the test was written."""

    package: str
    version: str
    path: str
    sha256: str

    @property
    def specifier(self) -> str:
        return f"npm:{self.package}@{self.version}"

    def cached(self) -> Path | None:
        # Below the registry's name, which depends on the machine.
        return next((CACHE / "npm").glob(f"**/{self.package}/{self.version}/{self.path}"), None)

    def read(self) -> bytes:
        file = self.cached()
        assert file is not None, f"{self.specifier} has no {self.path}"
        contents = file.read_bytes()
        assert hashlib.sha256(contents).hexdigest() == self.sha256, f"{self.path} of {self.specifier} was changed"
        return contents


def read_all(*wanted: NpmFile) -> list[bytes]:
    """The contents of these files. The test skips where no registry can be reached."""
    if not all(file.cached() for file in wanted):
        install([file.specifier for file in wanted])
    return [file.read() for file in wanted]


def install(specifiers: list[str]) -> None:
    command = [str(DENO), "cache", "--no-config", "--no-lock", "--quiet", *specifiers]
    env = os.environ | {"DENO_DIR": str(CACHE), "DENO_NO_UPDATE_CHECK": "1", "NO_COLOR": "1"}
    try:
        subprocess.run(command, env=env, cwd=CACHE.parent, capture_output=True, check=True, text=True, timeout=60)
    except subprocess.CalledProcessError as failed:
        pytest.skip(f"deno cannot get {' '.join(specifiers)} from npm's registry: {failed.stderr[:300]}")
    except (OSError, subprocess.TimeoutExpired) as failed:
        pytest.skip(f"deno cannot get {' '.join(specifiers)} from npm's registry: {failed}")
