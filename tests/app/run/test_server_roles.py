"""Who may do what in the local PostgreSQL, also where an earlier release created it."""

import json
from pathlib import Path

import psycopg
import pytest

from app.run import data_folder, server_roles
from app.run.local_servers import LocalServers
from tests.app.run.conftest import RunningServers, migrate_as_owner, servers_of
from tests.conftest import reachable_folder
from tests.service import plaudit


def test_the_owner_of_the_database_is_an_ordinary_role(running_servers: RunningServers) -> None:
    with psycopg.connect(running_servers[0].addresses.database_url, autocommit=True) as owner:
        rights = owner.execute(
            "SELECT rolsuper, rolbypassrls, rolreplication, rolcreatedb FROM pg_roles WHERE rolname = current_user"
        ).fetchone()
        assert rights == (False, False, False, False)
        for reach in ("COPY (SELECT 1) TO PROGRAM 'true'", "SELECT pg_read_file('PG_VERSION')"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                owner.execute(reach)


def test_the_owner_reads_what_statements_cost_outside_our_database(running_servers: RunningServers) -> None:
    servers = running_servers[0]
    elsewhere = psycopg.conninfo.make_conninfo(servers.addresses.database_url, dbname="postgres")
    with psycopg.connect(elsewhere) as owner:
        counted = owner.execute("SELECT count(*) FROM pg_stat_statements WHERE query LIKE '<insufficient%'").fetchone()
        assert counted == (0,), "those of other logins are not hidden"
    with psycopg.connect(servers.addresses.database_url) as owner:
        ours = owner.execute("SELECT count(*) FROM pg_extension WHERE extname = 'pg_stat_statements'").fetchone()
        assert ours == (0,), "a restore replaces the schema as the owner, who may not drop it"


def rights_in(url: str) -> dict[str, list[tuple[object, ...]]]:
    """Who owns what, and who may do what."""
    queries = {
        "tables": "SELECT relname, relkind, relowner::regrole::text, relacl::text FROM pg_class "
        "WHERE relnamespace = 'public'::regnamespace",
        "functions": "SELECT proname, proowner::regrole::text, proacl::text FROM pg_proc "
        "WHERE pronamespace = 'public'::regnamespace",
        "policies": "SELECT tablename, policyname, roles::text[], cmd, qual, with_check FROM pg_policies",
        "database": "SELECT datname, datdba::regrole::text FROM pg_database WHERE datname = current_database()",
        "roles": "SELECT rolname, rolsuper, rolinherit, rolcreaterole, rolcreatedb, rolcanlogin, rolbypassrls "
        "FROM pg_roles WHERE rolname LIKE 'plaudit%%'",
    }
    with psycopg.connect(url) as connection:
        return {name: sorted(connection.execute(query).fetchall()) for name, query in queries.items()}


@pytest.mark.parametrize("restored", [False, True])
def test_an_owner_that_was_a_superuser_becomes_an_ordinary_one(
    restored: bool, running_servers: RunningServers, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Data folders of earlier releases: their owner was the role that initdb made."""
    with reachable_folder() as path:
        folder = path / "data"
        with monkeypatch.context() as earlier:
            earlier.setattr(server_roles, "SUPERUSER_LOGIN", server_roles.OWNER_LOGIN)
            data_folder.prepare(folder)
            kept = data_folder.read_secrets(folder)
            data_folder.write_private(
                folder / "secrets.json", json.dumps({**kept, "superuser_password": kept["owner_password"]})
            )
            with servers_of(folder) as (servers, _):
                assert is_superuser(servers)
                migrate_as_owner(servers)
                assert plaudit("tenant", "create", "kept", "--name", "Kept", data_dir=folder).returncode == 0
                if restored:  # then the schema itself belongs to the old owner
                    assert plaudit("backup", str(tmp_path / "b"), data_dir=folder).returncode == 0
                    assert plaudit("restore", str(tmp_path / "b"), "--yes", data_dir=folder).returncode == 0
        del kept["superuser_password"]
        data_folder.write_private(folder / "secrets.json", json.dumps(kept))
        for _ in range(2):
            with servers_of(folder) as (servers, _processes):
                assert not is_superuser(servers)
                assert '"kept"' in plaudit("tenant", "list", "--json", data_dir=folder).stdout
                migrate_as_owner(servers)
                found, fresh = (
                    rights_in(servers.addresses.database_url),
                    rights_in(running_servers[0].addresses.database_url),
                )
                assert found == fresh, "as if it had been made so"
                assert plaudit("check", data_dir=folder).returncode == 0
        file = tmp_path / "after"
        assert plaudit("backup", str(file), data_dir=folder).returncode == 0
        again = plaudit("restore", str(file), "--yes", data_dir=folder)
        assert again.returncode == 0, again.stderr
        made = plaudit("tenant", "create", "more", "--name", "More", data_dir=folder)
        assert made.returncode == 0, made.stderr


def is_superuser(servers: LocalServers) -> bool:
    with psycopg.connect(servers.addresses.database_url) as owner:
        row = owner.execute("SELECT rolsuper FROM pg_roles WHERE rolname = current_user").fetchone()
        return bool(row and row[0])


def test_a_server_that_is_not_up_yet_is_no_error() -> None:
    assert not server_roles.ensure(server_roles.Logins(1, "a", "b", "c"))


def test_a_server_with_other_passwords_is_left_as_it_is(running_servers: RunningServers) -> None:
    logins = running_servers[0].logins
    with pytest.raises(data_folder.LocalServersError, match=r"passwords in secrets\.json.*nothing was changed"):
        server_roles.ensure(server_roles.Logins(logins.port, "wrong", "wrong", "wrong"))
    assert server_roles.ensure(logins)
