"""Backups contain everything, are restored whole or not at all, and run nothing but their SQL."""

import os
import re
import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from sqlalchemy.engine import make_url

from app.run import data_folder
from app.run.backups import _portable, unknown_objects
from app.run.data_folder import Addresses
from app.run.local_servers import LocalServers, running, started
from app.settings import Settings
from tests.conftest import reachable_folder
from tests.service import copy_prepared, plaudit


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A data folder whose servers are up."""
    with reachable_folder() as path:
        data = copy_prepared(path / "data")
        with data_folder.lock_servers(data, "up") as lock:
            servers = LocalServers(data, lock, durable=False)
            with started(servers, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL):
                data_folder.write_state(data, "up", servers.addresses)
                yield data


def rows_of(url: str) -> dict[str, list[str]]:
    """Every row of every table, seen as the owner."""
    with psycopg.connect(url) as connection:
        tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
        return {
            name: sorted(row[0] for row in connection.execute(f"SELECT x::text FROM {name} x").fetchall())
            for (name,) in tables
            if name not in {"boards", "global_boards"}  # versions jump, so that none is published twice
        }


def test_backup_wipe_restore_gives_the_same_data(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "plaudit.backup"
    for tenant_id in ("one", "two"):
        assert plaudit("tenant", "create", tenant_id, "--name", tenant_id, data_dir=folder).returncode == 0
        assert plaudit("user", "create", tenant_id, "somebody", data_dir=folder).returncode == 0
    with running(folder) as addresses:
        with psycopg.connect(addresses.database_url) as connection:
            connection.execute("INSERT INTO visitor_salts VALUES (now()::date, 'salt')")
        before = rows_of(addresses.database_url)
    assert len(before["users"]) == 2
    wrote = plaudit("backup", str(file), data_dir=folder)
    assert wrote.returncode == 0, wrote.stderr
    assert file.stat().st_mode & 0o077 == 0, "a backup is private"

    wiped = folder.with_name("wiped")
    assert plaudit("tenant", "create", "stray", "--name", "stray", data_dir=wiped).returncode == 0
    restored = plaudit("restore", str(file), "--yes", data_dir=wiped)
    assert restored.returncode == 0, restored.stderr
    with running(wiped) as addresses:
        restored_rows = rows_of(addresses.database_url)
    assert restored_rows.pop("visitor_salts") == [], "with a salt, visitors could be recognised for as long as a backup"
    assert before.pop("visitor_salts") != []
    assert restored_rows == before
    made = plaudit("tenant", "create", "three", "--name", "3", data_dir=wiped)
    assert made.returncode == 0, "the restored database takes writes"


def test_a_backup_is_whole_under_another_owner_too(
    folder: Path, tmp_path: Path, servers: Addresses, settings: Settings
) -> None:
    """An ordinary owner, as managed databases have them: no superuser, and another name than the backup's."""
    owner, file = f"owner_{secrets.token_hex(4)}", tmp_path / "b"
    plaudit("tenant", "create", "one", "--name", "One", data_dir=folder)
    plaudit("user", "create", "one", "owner_test", data_dir=folder)
    assert plaudit("backup", str(file), data_dir=folder).returncode == 0
    with psycopg.connect(servers.database_url, autocommit=True) as server:
        server.execute(sql.SQL("CREATE ROLE {} LOGIN CREATEROLE PASSWORD 'pw'").format(sql.Identifier(owner)))
        server.execute(sql.SQL("GRANT {} TO CURRENT_USER").format(sql.Identifier(owner)))
        grant = "GRANT plaudit_service, plaudit_platform TO {} WITH ADMIN OPTION"
        server.execute(sql.SQL(grant).format(sql.Identifier(owner)))
        server.execute(sql.SQL("CREATE DATABASE {0} OWNER {0}").format(sql.Identifier(owner)))
    url = make_url(servers.database_url).set(username=owner, password="pw", database=owner)
    env = {"DATABASE_URL": url.render_as_string(hide_password=False), "REDIS_URL": servers.redis_url}
    directly = {
        **env,
        "DATABASE_URL": "postgresql://x@127.0.0.1:1/x",
        "PLAUDIT_DIRECT_DATABASE_URL": env["DATABASE_URL"],
    }
    try:
        for _ in range(2):  # and a backup of that, restored again
            done = plaudit("restore", str(file), "--yes", data_dir=tmp_path, env=directly)
            assert done.returncode == 0, done.stderr
            rows = rows_of(env["DATABASE_URL"])
            assert rows["tenants"]
            assert rows["users"]
            made = plaudit("client", "create", "one", "--scopes", "admin", data_dir=tmp_path, env=env)
            assert made.returncode == 0, made.stderr
            file.unlink()
            again = plaudit("backup", str(file), data_dir=tmp_path, env=directly)
            assert again.returncode == 0, again.stderr
    finally:
        with psycopg.connect(servers.database_url, autocommit=True) as server:
            server.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(owner)))
            server.execute(
                sql.SQL("REVOKE plaudit_service, plaudit_platform FROM {} CASCADE").format(sql.Identifier(owner))
            )
            server.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(owner)))


def test_a_script_of_another_server_is_made_portable_and_rows_are_left_alone() -> None:
    mark = "ALTER TABLE ONLY public.pages ALTER COLUMN id SET (pg_attver=494);\n"
    policy = "CREATE POLICY owner ON public.pages TO somebody USING (true) WITH CHECK (true);\n"
    rows = ["COPY public.x (t) FROM stdin;\n", mark, "CREATE SCHEMA public;\n", "\\.\n"]
    script = ["SET transaction_timeout = 0;\n", mark, policy, *rows, mark]
    assert list(_portable(script)) == [policy.replace("somebody", "CURRENT_USER"), *rows]


def test_a_file_that_is_no_backup_changes_nothing(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "no.backup"
    file.write_bytes(b"PGDMP nonsense")
    before = plaudit("tenant", "list", "--json", data_dir=folder).stdout
    said = plaudit("restore", str(file), "--yes", data_dir=folder)
    assert said.returncode == 1
    assert "is not a backup" in said.stderr
    assert plaudit("tenant", "list", "--json", data_dir=folder).stdout == before


def test_a_backup_with_strange_objects_is_restored_only_by_who_trusts_it(folder: Path, tmp_path: Path) -> None:
    """The SQL of a backup runs as the owner, and a function of it whenever somebody is led to call it."""
    file = tmp_path / "b"
    assert plaudit("migrate", data_dir=folder).returncode == 0
    with running(folder) as addresses, psycopg.connect(addresses.database_url, autocommit=True) as owner:
        owner.execute("CREATE FUNCTION strange() RETURNS int LANGUAGE sql AS 'SELECT 1'")
        try:
            assert plaudit("backup", str(file), data_dir=folder).returncode == 0
        finally:
            owner.execute("DROP FUNCTION strange()")
    refused = plaudit("restore", str(file), "--yes", data_dir=folder)
    assert refused.returncode == 1
    assert len(refused.stderr.splitlines()) == 1
    assert "FUNCTION public strange()" in refused.stderr
    assert "--trust" in refused.stderr

    def strange_is_there() -> bool:
        with running(folder) as addresses, psycopg.connect(addresses.database_url) as owner:
            found = owner.execute("SELECT to_regproc('public.strange') IS NOT NULL").fetchone()
            return bool(found and found[0])

    assert not strange_is_there()
    trusted = plaudit("restore", str(file), "--yes", "--trust", data_dir=folder)
    assert trusted.returncode == 0, trusted.stderr
    assert strange_is_there()
    with running(folder) as addresses, psycopg.connect(addresses.database_url) as owner:
        owner.execute("DROP FUNCTION strange()")


@pytest.mark.parametrize(
    "entry",
    [
        "FUNCTION public record_events2(text) plaudit",
        "PROCEDURE public record_events(text) plaudit",
        "FUNCTION other record_events(text) plaudit",
        "TRIGGER public pages boo plaudit",
        "EVENT TRIGGER - boo plaudit",
        "EXTENSION - dblink ",
        "COMMENT - EXTENSION dblink ",
        "RULE public pages boo plaudit",
        "VIEW public boo plaudit",
        "MATERIALIZED VIEW public boo plaudit",
        "SERVER - boo plaudit",
        "FOREIGN TABLE public boo plaudit",
        "SCHEMA - other plaudit",
        "TABLE other pages plaudit",
        "TABLE DATA other pages plaudit",
        "BLOB - 12345 plaudit",
        "CAST - CAST (text AS integer) ",
        "OPERATOR public = plaudit",
        "PUBLICATION - boo plaudit",
        "something that pg_restore never wrote",
    ],
)
def test_strange_objects_are_found_in_a_list(entry: str) -> None:
    known = ["5; 2615 2200 SCHEMA - public pg_database_owner", "217; 1259 16386 TABLE public pages plaudit"]
    listing = "\n".join([";", "; Selected TOC Entries:", ";", *known, f"218; 1259 1 {entry}", ""])
    assert unknown_objects(listing) == [entry.strip()]


def test_a_backup_runs_no_program_of_the_machine(folder: Path, tmp_path: Path) -> None:
    """psql runs what follows \\! in a script, and a forged backup can contain any text."""
    file, ran = tmp_path / "b", Path("/tmp") / f"ran{secrets.token_hex(4)}"
    assert plaudit("tenant", "create", "whole", "--name", "Whole", data_dir=folder).returncode == 0
    assert plaudit("backup", str(file), data_dir=folder).returncode == 0
    index = re.search(rb"CREATE INDEX [^;]+;\n", file.read_bytes())
    assert index is not None
    forged = b"\\! touch %s\n" % bytes(ran)
    file.write_bytes(file.read_bytes().replace(index[0], forged + b" " * (len(index[0]) - len(forged))))
    done = plaudit("restore", str(file), "--yes", "--trust", data_dir=folder)
    assert done.returncode == 1
    assert "backslash commands are restricted" in done.stderr
    assert not ran.exists()
    assert '"whole"' in plaudit("tenant", "list", "--json", data_dir=folder).stdout


def test_a_backup_replaces_a_link_and_no_pipe_or_device(folder: Path, tmp_path: Path) -> None:
    victim, link, pipe = tmp_path / "victim", tmp_path / "link", tmp_path / "pipe"
    victim.write_text("precious")
    link.symlink_to(victim)
    assert plaudit("backup", str(link), data_dir=folder).returncode == 0
    assert (victim.read_text(), link.is_symlink()) == ("precious", False)
    os.mkfifo(pipe)
    refused = plaudit("backup", str(pipe), data_dir=folder)
    assert refused.returncode == 1
    assert len(refused.stderr.splitlines()) == 1
    assert pipe.is_fifo()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "pipe", "victim"], "nothing is left over"
