"""Every secret that passes through the tests, so that the last of them can look for it in the logs."""

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from flask import Response, request

NAMES = {
    "password",
    "admin_password",
    "access_token",
    "refresh_token",
    "client_secret",
    "reset_token",
    "action_token",
    "ticket",
    "owner_password",
    "service_password",
    "redis_password",
    "secret_key",
}
LOGS = Path(__file__).parents[1] / ".build" / "test-logs"
# Each of pytest's processes has a folder of its own.
LOG_FOLDER = LOGS / os.environ.get("PYTEST_XDIST_WORKER", "main")
KEPT = "secrets-seen.json"
SEEN: set[str] = set()


def keep() -> None:
    """For whoever looks through all logs when every process is done."""
    LOG_FOLDER.mkdir(parents=True, exist_ok=True)
    (LOG_FOLDER / KEPT).write_text(json.dumps(sorted(SEEN)))


def leaks(folder: Path) -> list[str]:
    """The secrets of the run that stand in any log below this folder."""
    files = [file for file in folder.rglob("*") if file.is_file()]
    seen = {secret for file in files if file.name == KEPT for secret in json.loads(file.read_text())}
    text = "\n".join(file.read_text(errors="replace") for file in files if file.name != KEPT)
    return sorted(secret for secret in seen if secret in text)


def watch(response: Response) -> Response:
    """After each request of a test client: what was sent, and what was answered."""
    with contextlib.suppress(ValueError, RecursionError):
        body = request.environ.get("plaudit.body")
        look_at(json.loads(body) if isinstance(body, bytes) and body else None)
    if response.is_json:
        look_at(response.get_json(silent=True))
    if response.status_code >= 400:
        with (LOG_FOLDER / "errors-told.txt").open("a") as told:
            told.write(response.get_data(as_text=True) + "\n")
    return response


def look_at(value: Any) -> None:
    if isinstance(value, list):
        for item in value:
            look_at(item)
    if isinstance(value, dict):
        for name, inner in value.items():
            if name in NAMES and isinstance(inner, str) and len(inner) >= 10:
                SEEN.add(inner)
            look_at(inner)
