"""Every log line has the same fields, and none has a secret."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import structlog

from tenants.logs import FIELDS, MAX_LOGGED_CHARS, mask

TOKEN = "eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJzb21lYm9keSJ9.c2lnbmF0dXJlLW9mLWl0"
SECRETS = [
    f"Bearer {TOKEN}",
    "bearer opaque-token~with+all/kinds=",
    TOKEN,
    "sk_" + "Secret-of-a-client_" * 2,
    "rt_demo_0123456789abcdef_" + "feed" * 12,
    "ds_demo_" + "beef" * 20,
    "rs_" + "Signs-For-Readers_" * 2,
    "plt_demo_" + "fade" * 28,
    "postgresql://me:hunter2-hunter2@host/db",
]
HARMLESS = ("Bearer", "bearer", "eyJ", "sk_", "rt_", "rs_", "ds_", "plt_", "postgresql://me:", "@host/db")

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


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("before", ["", "at ", "x-", "path/", "token=", "'"])
def test_a_secret_is_masked_even_where_the_text_is_cut_in_its_middle(secret: str, before: str) -> None:
    hidden = secret
    for part in HARMLESS:
        hidden = hidden.replace(part, " ")
    pieces = [piece for piece in hidden.split() if len(piece) > 3]
    for room in range(len(before) + 1, len(before + secret) + 20):
        masked = mask(before + secret + " and on it goes", max_chars=room)
        for piece in pieces:
            assert piece[:4] not in masked, (room, masked)
    assert "***" in mask(before + secret)


def test_what_is_logged_is_cut_before_it_is_searched_for_secrets(logged: Callable[[], list[dict[str, Any]]]) -> None:
    began = time.perf_counter()
    long = "eyJ-" * 250_000
    structlog.get_logger().info(long, action="test.long", data={"deep": {"text": [long, {"more": long}]}})
    structlog.get_logger().error("failed", exc_info=ValueError(long))
    assert time.perf_counter() - began < 1
    for line in logged():
        assert len(line["message"]) <= MAX_LOGGED_CHARS + 1
        assert len(json.dumps(line["data"])) < 3 * MAX_LOGGED_CHARS


def test_secrets_inside_of_nested_data_are_masked(logged: Callable[[], list[dict[str, Any]]]) -> None:
    class Holder:
        def __str__(self) -> str:
            return f"holds {SECRETS[3]}"

    data = {"list": [SECRETS[3]], "map": {SECRETS[3]: {"deeper": (SECRETS[3], 5)}}, "object": Holder(), "n": 1.5}
    structlog.get_logger().info("nested", action="test.nested", data=data)
    data_of_line = logged()[0]["data"]
    assert "Secret" not in json.dumps(data_of_line)
    assert data_of_line == {"list": ["***"], "map": {"***": {"deeper": ["***", 5]}}, "object": "holds ***", "n": 1.5}


def test_ordinary_words_stay_readable() -> None:
    for text in (
        "GET '/api/v1/pages/rt_1' 404",
        "at http://127.0.0.1:8000/health",
        "a key",
        "sk_short",
    ):
        assert mask(text) == text
