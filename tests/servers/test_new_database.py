"""A new database on a server of one's own, as docs/operating.md says; and an owner that may not create roles."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers.nodes import shared_env
from tests.servers.postgres import Postgres
from tests.service import ROOT, plaudit


@pytest.fixture
def server(folder: Path, request: pytest.FixtureRequest) -> Iterator[Postgres]:
    """Without the roles and the database that tests use."""
    with Postgres(folder / request.node.name) as server:
        server.execute("DROP DATABASE plaudit")
        server.execute("DROP ROLE plaudit")
        yield server


def documented() -> list[str]:
    """The statements that create the database."""
    blocks = re.findall(r"```sql\n(.*?)```", (ROOT / "docs" / "operating.md").read_text(), re.DOTALL)
    (block,) = [block for block in blocks if "CREATE DATABASE" in block]
    return [re.sub(r"\s*--.*", "", statement).strip() for statement in re.split(r";.*\n", block) if statement.strip()]


def test_the_documented_statements_are_enough_and_what_is_missing_is_said(folder: Path, server: Postgres) -> None:
    env = shared_env(database=server.url(), redis="redis://127.0.0.1:1/0")
    web = env | {"PLAUDIT_SERVICE_DATABASE_URL": server.url().replace("//plaudit@", "//plaudit_web@")}
    owner, login, database = documented()
    server.execute(owner.replace("CREATEROLE", ""))
    server.execute(database)
    refused = plaudit("migrate", data_dir=folder / "commands", env=env)
    assert refused.returncode == 1
    assert refused.stderr.startswith("plaudit: The login plaudit may not create roles: as a superuser run ALTER ROLE")
    assert len(refused.stderr.splitlines()) == 1
    server.execute("ALTER ROLE plaudit CREATEROLE")
    missing = plaudit("migrate", data_dir=folder / "commands", env=web)
    assert "plaudit: The login plaudit_web of PLAUDIT_SERVICE_DATABASE_URL does not exist" in missing.stderr
    server.execute(login)
    assert "from nothing to" in plaudit("migrate", data_dir=folder / "commands", env=web).stdout
    made = plaudit("tenant", "create", "one", "--name", "One", data_dir=folder / "commands", env=web)
    assert made.returncode == 0, made.stderr


def test_roles_that_a_superuser_created_are_enough_too(folder: Path, server: Postgres) -> None:
    env = shared_env(database=server.url(), redis="redis://127.0.0.1:1/0")
    server.execute("CREATE ROLE plaudit LOGIN")
    server.execute("CREATE DATABASE plaudit OWNER plaudit")
    refused = plaudit("migrate", data_dir=folder / "commands", env=env)
    for statement in refused.stderr.partition(", or ")[2].strip().split("; "):
        server.execute(statement)
    assert "from nothing to" in plaudit("migrate", data_dir=folder / "commands", env=env).stdout
    made = plaudit("tenant", "create", "one", "--name", "One", data_dir=folder / "commands", env=env)
    assert made.returncode == 0, made.stderr
