"""Every secret that passes through the tests, so that the last of them can look for it in the logs."""

import contextlib
import json
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
LOG_FOLDER = Path(__file__).parents[1] / ".build" / "test-logs"
SEEN: set[str] = set()


def watch(response: Response) -> Response:
    """After each request of a test client: what was sent, and what was answered."""
    with contextlib.suppress(ValueError, RecursionError):
        look_at(json.loads(request.environ.get("plaudit.body") or b"null"))
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
