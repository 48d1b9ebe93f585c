"""Every secret that the tests send or receive, so that the logs can be searched for it at the end of the run."""

import contextlib
import json
import os
import subprocess
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
    "token",
    "owner_password",
    "service_password",
    "redis_password",
    "secret_key",
}
LOGS = Path(__file__).parents[1] / ".build" / "test-logs"
# Each of pytest's processes has a folder of its own.
LOG_FOLDER = LOGS / os.environ.get("PYTEST_XDIST_WORKER", "main")
SAVED_AS = "secrets-seen.json"
SEEN: set[str] = set()


def save() -> None:
    """Write this process's secrets to a file, for the search when all processes are done."""
    LOG_FOLDER.mkdir(parents=True, exist_ok=True)
    (LOG_FOLDER / SAVED_AS).write_text(json.dumps(sorted(SEEN)))


def leaks(folder: Path) -> list[str]:
    """The secrets of the run that any log below this folder contains."""
    files = [file for file in folder.rglob("*") if file.is_file()]
    seen = {secret for file in files if file.name == SAVED_AS for secret in json.loads(file.read_text())}
    suspicious = _lines_with_any_of(seen, [file for file in files if file.name != SAVED_AS])
    return sorted(secret for secret in seen if secret in suspicious)


def _lines_with_any_of(secrets: set[str], files: list[Path]) -> str:
    """By grep, which looks for all of them at once. (A log line has one line: of a longer secret, its longest one.)"""
    wanted = {max(secret.splitlines(), key=len) for secret in secrets if secret.strip()}
    if not wanted or not files:
        return ""
    grep = ["grep", "--fixed-strings", "--text", "--no-filename", "--file=-", "--", *map(str, files)]
    found = subprocess.run(grep, input="\n".join(wanted).encode(), stdout=subprocess.PIPE, check=False)
    assert found.returncode in {0, 1}, "grep did not run"
    return found.stdout.decode(errors="replace")


def watch(response: Response) -> Response:
    """After each request of a test client: collect the secrets of its body and answer, and log errors."""
    with contextlib.suppress(ValueError, RecursionError):
        body = request.environ.get("plaudit.body")
        collect(json.loads(body) if isinstance(body, bytes) and body else None)
    if response.is_json:
        collect(response.get_json(silent=True))
    if response.status_code >= 400:
        with (LOG_FOLDER / "errors.txt").open("a") as file:
            file.write(response.get_data(as_text=True) + "\n")
    return response


def collect(value: Any) -> None:
    """Add the secrets in a JSON value to those seen."""
    if isinstance(value, list):
        for item in value:
            collect(item)
    if isinstance(value, dict):
        for name, inner in value.items():
            if name in NAMES and isinstance(inner, str) and len(inner) >= 10:
                SEEN.add(inner)
            collect(inner)
