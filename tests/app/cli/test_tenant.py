"""`plaudit tenant …`"""

import json
import secrets

from tests.app.cli.conftest import Run


def test_tenants_are_made_listed_and_deleted(connected: None, on_ours: Run) -> None:
    tenant = f"acme-{secrets.token_hex(4)}"

    def listed() -> list[str]:
        return [row["id"] for row in json.loads(on_ours("tenant", "list", "--json").stdout)]

    made = on_ours("tenant", "create", tenant, "--name", "Acme <wiki>", "--json")
    assert json.loads(made.stdout)["id"] == tenant, made.stderr
    again = on_ours("tenant", "create", tenant, "--name", "Acme")
    assert again.returncode == 1
    assert again.stderr == f"plaudit: A tenant '{tenant}' already exists\n"
    bad = on_ours("tenant", "create", "A!", "--name", "x")
    assert bad.returncode == 1
    assert bad.stderr.startswith("plaudit: id: 2 to 63")
    assert "Acme <wiki>" in on_ours("tenant", "list").stdout
    assert tenant in listed()
    unsure = on_ours("tenant", "delete", tenant)
    assert (unsure.returncode, tenant in listed()) == (1, True), "it asks first"
    assert on_ours("tenant", "delete", tenant, "--yes").returncode == 0
    assert tenant not in listed()
    assert on_ours("tenant", "delete", tenant, "--yes").returncode == 1


def test_an_operator_sets_and_sees_how_much_a_tenant_may_have(tenant: str, on_ours: Run) -> None:
    on_ours("user", "create", tenant, "first")

    def limits(*options: str) -> dict[str, tuple[int, int | None]]:
        done = on_ours("tenant", "limit", tenant, *options, "--json")
        assert done.returncode == 0, done.stderr
        return {row["what"]: (row["limit"], row["used"]) for row in json.loads(done.stdout)}

    assert limits() == {
        "pages": (5_000_000, 0),
        "users": (5_000_000, 1),
        "spaces": (1_000, 0),
        "segments": (1_000, 0),
        "sockets": (2_000, None),
    }
    changed = limits("--users", "1", "--sockets", "10")
    assert (changed["users"], changed["sockets"], changed["pages"]) == ((1, 1), (10, None), (5_000_000, 0))
    assert "users" in on_ours("tenant", "limit", tenant).stdout
    second = on_ours("user", "create", tenant, "second")
    assert (second.returncode, "maximum of 1 users" in second.stderr) == (1, True)
    for wrong in (("nobody",), (tenant, "--pages", "-1")):
        assert on_ours("tenant", "limit", *wrong).returncode in {1, 2}
