"""The search of all logs at the end of the run (tests/conftest.py) notices a secret."""

import json
from pathlib import Path

from tests.secrets_seen import SAVED_AS, leaks


def test_a_secret_in_any_log_is_noticed(tmp_path: Path) -> None:
    for name, line in (("one", "nothing here"), ("two", "the password is canary-one")):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "tests.jsonl").write_text(line)
        (folder / SAVED_AS).write_text(json.dumps([f"canary-{name}"]))
    assert leaks(tmp_path) == ["canary-one"], "another process's secret too"
