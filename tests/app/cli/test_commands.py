"""The commands, as a stranger runs them."""

import contextlib
import json
import os
import re
import secrets
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess

import psycopg
import pytest
from click import Group
from click.testing import CliRunner
from psycopg import sql
from sqlalchemy import select
from sqlalchemy.engine import make_url

from app.cli import cli
from app.run import data_folder
from app.run.backups import _portable, unknown_objects
from app.run.data_folder import Addresses
from app.run.local_servers import LocalServers, running, started
from app.settings import Settings
from tenants import registry, users
from tenants.db import owner_tx, tenant_tx, utcnow
from tests.conftest import reachable_folder
from tests.service import PLAUDIT, ROOT, copy_prepared, own_servers_env, plaudit


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


def test_every_command_has_help() -> None:
    top = CliRunner().invoke(cli, ["--help"]).stdout
    assert "..." not in top.replace("[ARGS]...", ""), "no summary is cut off"
    for name, command in cli.commands.items():
        assert command.hidden or f"  {name} " in top
        inner = [[name, sub] for sub in command.commands] if isinstance(command, Group) else [[name]]
        for words in [[name], *inner]:
            told = CliRunner().invoke(cli, [*words, "--help"])
            assert told.exit_code == 0
            assert len(told.stdout.splitlines()) > 4


@pytest.mark.parametrize("arguments", [["--help"], ["worker"], ["live"]])
def test_a_command_that_needs_no_library_loads_none(arguments: list[str], tmp_path: Path) -> None:
    """`plaudit --help` is quick, and a process that becomes another program does not load everything twice."""
    until_it_becomes_another = "import os, sys, app.cli as c\nos.execv = lambda *_: sys.exit()\n"
    shown = "try: c.main()\nexcept SystemExit: print('loaded', *sorted({name.split('.')[0] for name in sys.modules}))"
    done = subprocess.run(
        [*PLAUDIT[:-2], "-c", until_it_becomes_another + shown, "--data-dir", str(tmp_path), *arguments],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        env=own_servers_env() | {"DATABASE_URL": "postgresql://u@h/d", "PLAUDIT_SECRET_KEY": "x" * 32},
    )
    *_, loaded = done.stdout.splitlines()
    assert loaded.split()[0] == "loaded", done.stderr
    heavy = {"sqlalchemy", "psycopg", "redis", "flask", "structlog", "rich", "rq", "gunicorn", "granian", "alembic"}
    assert heavy & {*loaded.split()} == set()
    assert "click" in loaded.split()


def test_servers_are_started_for_the_moment_and_only_where_there_is_a_plaudit() -> None:
    with reachable_folder() as path:
        folder = path / "data"
        nowhere = plaudit("check", data_dir=folder)
        assert (nowhere.returncode, folder.exists()) == (1, False), "in the wrong folder no empty Plaudit is made"
        assert f"There is no Plaudit in {folder}" in nowhere.stderr
        assert "from nothing to" in plaudit("migrate", data_dir=folder).stdout
        assert "no tenant yet" in plaudit("tenant", "list", data_dir=folder).stdout


def test_tenants_are_made_listed_and_deleted(folder: Path) -> None:
    assert plaudit("migrate", data_dir=folder).returncode == 0
    assert "no tenant yet" in plaudit("tenant", "list", data_dir=folder).stdout
    elsewhere = plaudit("tenant", "list", "--data-dir", str(folder), data_dir=folder.with_name("not-this-one"))
    assert "no tenant yet" in elsewhere.stdout, "--data-dir counts after the command too"
    assert not folder.with_name("not-this-one").exists()
    made = plaudit("tenant", "create", "acme", "--name", "Acme <wiki>", "--json", data_dir=folder)
    assert json.loads(made.stdout)["id"] == "acme", made.stderr
    again = plaudit("tenant", "create", "acme", "--name", "Acme", data_dir=folder)
    assert again.returncode == 1
    assert again.stderr == "plaudit: A tenant 'acme' already exists\n"
    bad = plaudit("tenant", "create", "A!", "--name", "x", data_dir=folder)
    assert bad.returncode == 1
    assert bad.stderr.startswith("plaudit: id: 2 to 63")
    assert "Acme <wiki>" in plaudit("tenant", "list", data_dir=folder).stdout
    assert plaudit("tenant", "delete", "acme", "--yes", data_dir=folder).returncode == 0
    assert json.loads(plaudit("tenant", "list", "--json", data_dir=folder).stdout) == []
    assert plaudit("tenant", "delete", "acme", "--yes", data_dir=folder).returncode == 1


def test_migrate_says_what_it_did(folder: Path) -> None:
    assert "already" in plaudit("migrate", data_dir=folder).stdout
    assert json.loads(plaudit("migrate", "--json", data_dir=folder).stdout)["after"]


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
        assert rows_of(addresses.database_url) == before
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
    try:
        for _ in range(2):  # and a backup of that, restored again
            done = plaudit("restore", str(file), "--yes", data_dir=tmp_path, env=env)
            assert done.returncode == 0, done.stderr
            rows = rows_of(env["DATABASE_URL"])
            assert rows["tenants"]
            assert rows["users"]
            made = plaudit("client", "create", "one", "--scopes", "admin", data_dir=tmp_path, env=env)
            assert made.returncode == 0, made.stderr
            file.unlink()
            again = plaudit("backup", str(file), data_dir=tmp_path, env=env)
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


def test_restore_asks_before_it_replaces(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "b"
    assert plaudit("tenant", "create", "replaced", "--name", "Replaced", data_dir=folder).returncode == 0
    assert plaudit("backup", str(file), data_dir=folder).returncode == 0
    asked = plaudit("restore", str(file), data_dir=folder)
    assert asked.returncode == 1
    for said in (asked.stderr, " ".join(CliRunner().invoke(cli, ["restore", "--help"]).stdout.split())):
        assert "runs as the owner of the database" in said


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
    """psql runs what follows \\! in a script, and a forged backup can hold any text."""
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


def test_a_process_without_a_database_says_so(tmp_path: Path) -> None:
    for command in ("web", "worker"):
        said = plaudit(command, data_dir=tmp_path)
        assert said.returncode == 1
        assert "plaudit up" in said.stderr


@pytest.fixture
def on_ours(settings: Settings, tmp_path: Path) -> Callable[..., CompletedProcess[str]]:
    """Commands on the tests' own servers, which need not be started for each."""
    env = {"DATABASE_URL": settings.database_url or "", "REDIS_URL": settings.redis_url or ""}
    if settings.service_database_url:
        env["PLAUDIT_SERVICE_DATABASE_URL"] = settings.service_database_url
    return lambda *arguments: plaudit(*arguments, data_dir=tmp_path, env=env)


def test_clients_from_the_command_line(tenant: str, on_ours: Callable[..., CompletedProcess[str]]) -> None:
    made = json.loads(on_ours("client", "create", tenant, "--scopes", "stats:read,events:write", "--json").stdout)
    assert made["client_secret"].startswith("sk_")
    listed = on_ours("client", "list", tenant, "--json").stdout
    assert made["client_id"] in listed
    assert made["client_secret"] not in listed
    rotated = json.loads(on_ours("client", "rotate", tenant, made["client_id"], "--json").stdout)
    assert rotated["client_secret"] != made["client_secret"]
    assert on_ours("client", "revoke", tenant, made["client_id"]).returncode == 0
    assert "no client yet" in on_ours("client", "list", tenant).stdout


def test_keys_from_the_command_line(tenant: str, on_ours: Callable[..., CompletedProcess[str]]) -> None:
    key = json.loads(on_ours("key", "create", tenant, "--origin", "https://w.example", "--json").stdout)
    assert key["key"].startswith(f"pk_{tenant}_")
    assert on_ours("key", "revoke", tenant, key["key"]).returncode == 0


def test_users_from_the_command_line(tenant: str, on_ours: Callable[..., CompletedProcess[str]]) -> None:
    admin = on_ours("user", "create", tenant, "boss", "--role", "admin")
    assert "Password: " in admin.stdout, admin.stderr
    assert "audit.user.created" in admin.stderr
    with tenant_tx(tenant) as tx:
        assert tx.scalars(select(users.User.sees_private)).all() == [True], "who is made here sees private pages"
    assert "suspended" in on_ours("user", "suspend", tenant, "boss").stdout
    assert "admin" in on_ours("user", "suspend", tenant, "boss", "--lift").stdout
    assert "member" in on_ours("user", "role", tenant, "boss", "member").stdout
    assert json.loads(on_ours("user", "list", tenant, "--json").stdout)[0]["username"] == "boss"


def test_the_signing_key_is_rotated_from_the_command_line(
    connected: None, on_ours: Callable[..., CompletedProcess[str]]
) -> None:
    assert "published" in on_ours("signing-key", "rotate").stdout


def test_an_action_keeps_the_terms_that_are_not_given(
    tenant: str, on_ours: Callable[..., CompletedProcess[str]]
) -> None:
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


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("client", "create", "nobody", "--scopes", "admin"), "There is no tenant 'nobody'"),
        (("client", "create", "one", "--scopes", "everything"), "scopes: one or more of"),
        (("client", "revoke", "one", "one.123"), "Not found"),
        (("key", "create", "one", "--origin", "wiki.example/x"), "origins: 1 to 50"),
        (("user", "create", "one", "x"), "username: 3 to 50"),
        (("user", "role", "one", "nobody", "admin"), "There is no user 'nobody'"),
    ],
)
def test_a_mistake_is_said_in_one_line(
    connected: None, on_ours: Callable[..., CompletedProcess[str]], arguments: tuple[str, ...], said: str
) -> None:
    with contextlib.suppress(registry.TenantExists), owner_tx() as tx:
        registry.create(tx, "one", name="One", now=utcnow())
    answer = on_ours(*arguments)
    assert answer.returncode == 1
    assert answer.stderr.startswith(f"plaudit: {said}"), answer.stderr
    assert len(answer.stderr.splitlines()) == 1


def test_an_operator_sets_and_sees_how_much_a_tenant_may_have(folder: Path) -> None:
    plaudit("tenant", "create", "bound", "--name", "Bound", data_dir=folder)
    plaudit("user", "create", "bound", "first", data_dir=folder)

    def limits(*options: str) -> dict[str, tuple[int, int | None]]:
        done = plaudit("tenant", "limit", "bound", *options, "--json", data_dir=folder)
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
    assert "users" in plaudit("tenant", "limit", "bound", data_dir=folder).stdout
    second = plaudit("user", "create", "bound", "second", data_dir=folder)
    assert (second.returncode, "maximum of 1 users" in second.stderr) == (1, True)
    for wrong in (("nobody",), ("bound", "--pages", "-1")):
        assert plaudit("tenant", "limit", *wrong, data_dir=folder).returncode in {1, 2}
