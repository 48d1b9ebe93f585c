"""Secrets, addresses and disk space of this machine."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from app.doctor import installation as installations
from app.doctor import machine
from app.doctor.findings import Level
from app.doctor.installation import Installation
from app.settings import Settings
from tenants.db import utcnow
from tests.app.doctor.conftest import bad


class Usage(NamedTuple):
    total: int
    used: int
    free: int


def of(settings: Settings, folder: Path, *, is_local: bool = False, **changes: Any) -> Installation:
    return installations.of(replace(settings, **changes), folder, is_local=is_local, now=utcnow())


def test_a_secret_key_must_be_there_and_be_hard_to_guess(settings: Settings, tmp_path: Path) -> None:
    random = "xV3-9kLqz0WmB_y7TfGh2PsDe5RuAcJn"
    assert bad(machine.secret_key(of(settings, tmp_path, secret_key=random))) == []
    assert bad(machine.secret_key(of(settings, tmp_path, secret_key="ab" * 20))) == [
        (Level.WARN, "PLAUDIT_SECRET_KEY has only 2 different characters")
    ]
    missing = bad(machine.secret_key(of(settings, tmp_path, secret_key=None)))
    assert missing == [(Level.PROBLEM, "PLAUDIT_SECRET_KEY is not set")]
    assert bad(machine.secret_key(of(settings, tmp_path, secret_key=None, is_local=True))) == [], "the folder's own"


def test_the_secrets_of_a_data_folder_are_for_its_owner_only(settings: Settings, tmp_path: Path) -> None:
    file = tmp_path / "secrets.json"
    file.touch(mode=0o600)
    assert list(machine.secrets_file(of(settings, tmp_path, is_local=True))) == []
    file.chmod(0o640)
    ((level, what),) = bad(machine.secrets_file(of(settings, tmp_path, is_local=True)))
    assert (level, "mode 640" in what) == (Level.PROBLEM, True)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "plaudit.example"])  # noqa: S104
def test_who_listens_to_others_needs_a_public_address(settings: Settings, tmp_path: Path, host: str) -> None:
    assert bad(machine.public_url(of(settings, tmp_path, host=host)))
    assert bad(machine.public_url(of(settings, tmp_path, host=host, has_public_url=True))) == []


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_on_loopback_none_is_needed(settings: Settings, tmp_path: Path, host: str) -> None:
    assert bad(machine.public_url(of(settings, tmp_path, host=host))) == []


@pytest.mark.parametrize(
    ("free", "level"), [(2**29, Level.PROBLEM), (2**32, Level.WARN), (9 * 2**30, Level.WARN), (2**37, Level.OK)]
)
def test_a_disk_that_is_nearly_full_is_said(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, level: Level
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(total=100 * 2**30, used=0, free=free))
    (finding,) = machine.disk_space(of(settings, tmp_path, is_local=True))
    assert finding.level is level
    (elsewhere,) = machine.disk_space(of(settings, tmp_path))
    assert elsewhere.level is Level.OK, "the database is on another machine"


def test_the_versions_are_there() -> None:
    assert machine.versions().keys() == {"plaudit", "python"}
