"""`plaudit distribute`, without a Citus and with one. (What it does: tests/migrations/test_distribution.py.)"""

import pytest

from tests import citus
from tests.app.cli.conftest import Run


@pytest.mark.skipif(citus.URL is not None, reason="this server has Citus")
@pytest.mark.parametrize("options", [(), ("--check",), ("--json",)])
def test_without_citus_it_says_so_in_one_line(connected: None, on_ours: Run, options: tuple[str, ...]) -> None:
    said = on_ours("distribute", *options)
    assert (said.returncode, said.stdout) == (1, "")
    assert said.stderr.splitlines() == [
        "plaudit: This database has no Citus: CREATE EXTENSION citus on every node first, as a superuser"
    ]


@pytest.mark.skipif(citus.URL is None, reason="needs PLAUDIT_TEST_CITUS_URL")
def test_what_is_distributed_is_left_alone(connected: None, on_ours: Run) -> None:
    assert on_ours("distribute", "--check").stdout == "Everything is distributed.\n"
    assert on_ours("distribute").stdout == "Everything is distributed already.\n"
    assert on_ours("distribute", "--check", "--json").stdout == '{"ok": true, "missing": []}\n'
