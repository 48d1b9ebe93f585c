"""Commands, run as processes on the tests' own servers. (Tests of local servers and backups: tests/app/run.)"""

from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from app.settings import Settings
from tests.analytics.conftest import page, sender
from tests.service import plaudit

__all__ = ["page", "sender"]

# Runs one command to its end.
Run = Callable[..., CompletedProcess[str]]


@pytest.fixture
def on_ours(settings: Settings, tmp_path: Path) -> Run:
    """Commands on the tests' own servers, which need not be started for each."""
    env = {"DATABASE_URL": settings.database_url or "", "REDIS_URL": settings.redis_url or ""}
    if settings.service_database_url:
        env["PLAUDIT_SERVICE_DATABASE_URL"] = settings.service_database_url
    return lambda *arguments: plaudit(*arguments, data_dir=tmp_path, env=env)
