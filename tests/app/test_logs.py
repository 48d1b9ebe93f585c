"""PRODUCT 28: every line has the same fields, and none has a secret."""

import json
import subprocess
import sys
from pathlib import Path

from tenants.logs import FIELDS

SCRIPT = """
import logging, structlog
from tenants import logs
logs.configure(service="test", log_format="{format}")
logs.begin(request_id="r1")
logs.bind(tenant_id="demo", user_id="u1")
structlog.get_logger().info("hello", action="test.said", data={{"n": 1, "auth": "Bearer abc.def.ghi"}})
logging.getLogger("elsewhere").warning("from %s at postgresql://me:hunter2@host/db", "a library")
try:
    1 / 0
except ZeroDivisionError:
    structlog.get_logger().exception("failed")
"""


def output(log_format: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(format=log_format)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_a_line_is_json_with_every_field() -> None:
    lines = [json.loads(line) for line in output("json").splitlines()]
    assert [tuple(line) for line in lines] == [FIELDS] * 3
    assert lines[0]["requestId"] == "r1"
    assert lines[0]["tenantId"] == "demo"
    assert lines[0]["userId"] == "u1"
    assert lines[0]["action"] == "test.said"
    assert "ZeroDivisionError" in lines[2]["data"]["exception"]


def test_secrets_are_masked_wherever_they_stand() -> None:
    for log_format in ("json", "console"):
        text = output(log_format)
        assert "hunter2" not in text
        assert "abc.def" not in text
        assert "from a library" in text
