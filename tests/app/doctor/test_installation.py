"""The ways to read cannot write, and know whether Plaudit runs."""

import json
import os
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from app.doctor import installation as installations
from app.doctor.installation import Installation
from app.settings import Settings
from tenants.db import utcnow


def test_nothing_can_be_written(scratch: Installation) -> None:
    with pytest.raises(DBAPIError, match="read-only transaction"), scratch.reading() as connection:
        connection.execute(text("UPDATE tenants SET name = 'changed'"))
    with scratch.reading() as connection:
        assert connection.scalar(text("SHOW statement_timeout")) == "10s"


def test_it_runs_unless_its_servers_were_started_for_this_command(settings: Settings, tmp_path: Path) -> None:
    def is_running(*, is_local: bool) -> bool:
        return installations.of(settings, tmp_path, is_local=is_local, now=utcnow()).is_running

    state = tmp_path / "servers.json"
    state.write_text(json.dumps({"pid": os.getpid(), "holder": "command"}))
    assert not is_running(is_local=True)
    assert is_running(is_local=False), "the operator's own servers always run"
    state.write_text(json.dumps({"pid": 1, "holder": "up"}))
    assert is_running(is_local=True)
