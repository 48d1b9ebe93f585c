"""Gunicorn's hooks for the live process."""

from typing import Any

from app.launcher import die_with_parent
from app.settings import Settings
from tenants import logs


def post_fork(server: Any, _worker: Any) -> None:
    die_with_parent(server.pid)
    logs.configure(service="live", log_format=Settings.from_env().log_format)
