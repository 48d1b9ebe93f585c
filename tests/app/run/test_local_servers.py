"""The servers that come along: as whom they run, and who may do what in them."""

import contextlib
import json
import os
import pwd
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from redis import Redis
from redis.exceptions import ResponseError

from app.run import data_folder, server_roles
from app.run.local_servers import LocalServers, started
from migrations.run import migrate
from tenants.db import make_engine
from tests.conftest import reachable_folder
from tests.service import plaudit

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root runs the servers as somebody else")


Embedded = tuple[LocalServers, dict[str, "subprocess.Popen[bytes]"]]


@contextlib.contextmanager
def servers_of(folder: Path) -> Iterator[Embedded]:
    data = data_folder.prepare(folder)
    with data_folder.lock_servers(data, "up") as lock:
        servers = LocalServers(data, lock, durable=False)
        with started(servers, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as processes:
            data_folder.write_state(data, "up", servers.addresses)
            yield servers, processes


@pytest.fixture(scope="module")
def embedded() -> Iterator[Embedded]:
    with reachable_folder() as folder, servers_of(folder / "data") as running:
        migrate_as_owner(running[0])
        yield running


def migrate_as_owner(servers: LocalServers) -> None:
    engine = make_engine(servers.addresses.database_url, pool_size=1)
    migrate(engine, service_url=servers.addresses.service_database_url)
    engine.dispose()


def test_valkey_takes_no_debug_command(embedded: Embedded) -> None:
    with Redis.from_url(embedded[0].addresses.redis_url) as redis, pytest.raises(ResponseError, match="not allowed"):
        redis.execute_command("DEBUG", "SLEEP", "0")


def test_the_owner_of_the_database_is_an_ordinary_role(embedded: Embedded) -> None:
    with psycopg.connect(embedded[0].addresses.database_url, autocommit=True) as owner:
        rights = owner.execute(
            "SELECT rolsuper, rolbypassrls, rolreplication, rolcreatedb FROM pg_roles WHERE rolname = current_user"
        ).fetchone()
        assert rights == (False, False, False, False)
        for reach in ("COPY (SELECT 1) TO PROGRAM 'true'", "SELECT pg_read_file('PG_VERSION')"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                owner.execute(reach)


def test_the_superusers_password_is_told_to_no_other_process(embedded: Embedded) -> None:
    servers, _ = embedded
    state = (servers.data_dir / "servers.json").read_text()
    assert servers.logins.superuser_password not in state
    assert servers.logins.owner_password in state


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
    restored: bool, embedded: Embedded, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
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
                found, fresh = rights_in(servers.addresses.database_url), rights_in(embedded[0].addresses.database_url)
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


@as_root
def test_the_servers_run_as_a_user_that_no_other_program_has(embedded: Embedded) -> None:
    servers, processes = embedded
    for process in processes.values():
        uid = Path(f"/proc/{process.pid}").stat().st_uid
        name = next((entry.pw_name for entry in pwd.getpwall() if entry.pw_uid == uid), None)
        assert name in {None, "plaudit"}, "other programs run as this user"
    data = servers.data_dir / f"postgres-{servers.version}"
    owners = {path.lstat().st_uid for path in [data, *data.rglob("*")]}
    assert owners == {uid}
    assert not list(servers.data_dir.glob("postgres-*.new"))


@as_root
def test_data_that_others_could_read_is_taken_over(tmp_path: Path) -> None:
    nobody = pwd.getpwnam("nobody")
    outside = tmp_path / "outside"
    outside.touch()
    os.chown(outside, nobody.pw_uid, nobody.pw_gid)
    with reachable_folder() as path:
        folder = path / "data"
        with servers_of(folder) as (servers, _):
            data = folder / f"postgres-{servers.version}"
        own = data.stat().st_uid
        for entry in [data, *data.rglob("*")]:
            os.chown(entry, nobody.pw_uid, nobody.pw_gid)
        (data / "link").symlink_to(outside)
        os.chown(data / "link", nobody.pw_uid, nobody.pw_gid, follow_symlinks=False)
        with servers_of(folder):
            assert {entry.lstat().st_uid for entry in [data, *data.rglob("*")]} == {own}
    assert outside.stat().st_uid == nobody.pw_uid, "no link is followed"


def test_what_an_interrupted_start_left_is_no_data_of_another_version() -> None:
    with reachable_folder() as path:
        folder = data_folder.prepare(path / "data")
        (folder / "postgres-18.new" / "data").mkdir(parents=True)
        with servers_of(folder) as (servers, _):
            assert servers.are_up()


def test_a_lock_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "servers.lock").symlink_to(tmp_path / "victim")
    with pytest.raises(data_folder.LocalServersError, match="--data-dir"):
        data_folder.prepare(tmp_path / "data")
    assert not (tmp_path / "victim").exists()
