"""No password, secret, token or key stands in any log line of the whole run. Runs last."""

from pathlib import Path

import structlog

from tests.secrets_seen import LOG_FOLDER, SEEN


def leaks(folder: Path) -> list[str]:
    text = "\n".join(file.read_text(errors="replace") for file in folder.iterdir())
    return [secret for secret in SEEN if secret in text]


def test_no_secret_in_any_log(log_file: Path) -> None:
    assert leaks(LOG_FOLDER) == []


def test_no_secret_in_any_log_would_notice_one(log_file: Path) -> None:
    canary = "canary-" + "x" * 20
    SEEN.add(canary)
    structlog.get_logger().info("the password is " + canary)
    assert leaks(LOG_FOLDER) == [canary]
    SEEN.discard(canary)
