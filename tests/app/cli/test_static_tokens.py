"""`plaudit token …`"""

import json

from tenants import static_tokens
from tests.app.cli.conftest import Run
from tests.secrets_seen import SEEN


def test_static_tokens_from_the_command_line(tenant: str, on_ours: Run) -> None:
    options = ("--name", "Grafana", "--scopes", "stats:read,pages:write", "--expires-in-days", "30", "--json")
    done = on_ours("token", "create", tenant, *options)
    created = json.loads(done.stdout)
    SEEN.add(created["token"])
    assert created["token"].startswith(f"plt_{tenant}_{created['id']}_")
    assert "audit.static_token.created" in done.stderr
    assert created["token"] not in done.stderr
    listed = on_ours("token", "list", tenant, "--json").stdout
    assert created["token"] not in listed
    (shown,) = json.loads(listed)
    assert (shown["id"], shown["name"], shown["scopes"]) == (created["id"], "Grafana", "pages:write stats:read")
    assert static_tokens.rights_of(tenant, created["id"]) is not None
    assert on_ours("token", "revoke", tenant, created["id"]).returncode == 0
    assert static_tokens.rights_of(tenant, created["id"]) is None
    assert "no static token yet" in on_ours("token", "list", tenant).stdout
    assert "Not found" in on_ours("token", "revoke", tenant, created["id"]).stderr
    assert "scopes" in on_ours("token", "create", tenant, "--name", "x", "--scopes", "root").stderr
