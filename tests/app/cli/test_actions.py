"""`plaudit action …`"""

import json

from tests.app.cli.conftest import Run


def test_an_action_keeps_the_terms_that_are_not_given(tenant: str, on_ours: Run) -> None:
    assert "--points" in on_ours("action", "set", tenant, "answer").stderr
    on_ours("action", "set", tenant, "answer", "--points", "7", "--cooldown", "5", "--requires-token")
    changed = json.loads(on_ours("action", "set", tenant, "answer", "--points", "8", "--json").stdout)
    assert (changed["points"], changed["cooldown_s"], changed["requires_token"]) == (8, 5, True)
    assert "cooldown_s" not in on_ours("action", "set", tenant, "answer", "--cooldown", "0").stdout
    daily = ("--daily-cap", "20", "--daily-limit", "2")
    capped = json.loads(on_ours("action", "set", tenant, "answer", *daily, "--json").stdout)
    assert (capped["daily_cap"], capped["daily_limit"]) == (20, 2)
    refused = on_ours("action", "set", tenant, "answer", "--points", "21", "--no-token")
    assert (refused.returncode, "daily_cap" in refused.stderr) == (1, True), "the cap that stays would never pay it"
    freed = json.loads(on_ours("action", "set", tenant, "answer", "--daily-cap", "0", "--json").stdout)
    assert (freed["daily_cap"], freed["daily_limit"]) == (None, 2)
    (listed,) = json.loads(on_ours("action", "list", tenant, "--json").stdout)
    assert (listed["daily_cap"], listed["daily_limit"]) == (None, 2)
    assert "answer" in on_ours("action", "list", tenant).stdout
    assert on_ours("action", "remove", tenant, "answer").returncode == 0
    assert "no action yet" in on_ours("action", "list", tenant).stdout
