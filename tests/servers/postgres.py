"""Debian's PostgreSQL for tests: 15 in Debian 12, the oldest that Plaudit supports. With standbys, and PgBouncer."""

import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import psycopg

from tests.servers.programs import Server, find, launch
from tests.service import ROOT

OWNER = "plaudit"
# PgBouncer's name of the same database, with a pool of one connection.
ONE_CONNECTION = "plaudit_one"
SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "200",
    "shared_buffers": "64MB",
    "timezone": "UTC",
    "log_timezone": "UTC",
    # Servers are killed here, machines are not: what was written is kept without it.
    "fsync": "off",
    "jit": "off",
}


class Postgres(Server):
    """A cluster with the database `plaudit` and its owner, an ordinary role; nobody needs a password."""

    name = "postgres"
    stop_signal = signal.SIGINT

    def __init__(self, folder: Path, *, copied_from: "Postgres | None" = None) -> None:
        super().__init__(folder)
        self.program = find("postgres")
        if copied_from is None:
            self._run("initdb", "-D", str(folder), "-U", "postgres", "--auth=trust", "--no-sync", "--locale=C.UTF-8")
        else:
            source = ("-h", "127.0.0.1", "-p", str(copied_from.port), "-U", "postgres")
            self._run("pg_basebackup", "-D", str(folder), "--write-recovery-conf", "--checkpoint=fast", *source)
        self.is_new = copied_from is None

    def command(self) -> list[str]:
        settings = SETTINGS | {"port": str(self.port)}
        return [self.program, "-D", str(self.folder), *(f"--{name}={value}" for name, value in settings.items())]

    def answers(self) -> bool:
        try:
            if self.is_new:
                self.execute(f"CREATE ROLE {OWNER} LOGIN CREATEROLE CREATEDB IN ROLE pg_signal_backend")
                self.execute(f"CREATE DATABASE {OWNER} OWNER {OWNER}")
                self.is_new = False
            return bool(self.execute("SELECT 1"))
        except psycopg.OperationalError:
            return False

    def url(self, database: str = OWNER) -> str:
        return f"postgresql://{OWNER}@127.0.0.1:{self.port}/{database}"

    def execute(self, statement: str, database: str = "postgres") -> list[Any]:
        """Run a statement as the superuser; returns its rows."""
        url = f"postgresql://postgres@127.0.0.1:{self.port}/{database}"
        with psycopg.connect(url, autocommit=True, connect_timeout=5) as connection:
            done = connection.execute(statement)
            return done.fetchall() if done.description else []

    def set(self, name: str, value: str) -> None:
        """Change a setting of the running server."""
        self.execute(f"ALTER SYSTEM SET {name} = '{value}'")
        self.execute("SELECT pg_reload_conf()")

    def promote(self) -> None:
        """Have a standby become the primary."""
        assert self.execute("SELECT pg_promote()") == [(True,)]

    def _run(self, tool: str, *arguments: str) -> None:
        command = launch([str(Path(self.program).with_name(tool)), *arguments])
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=self.folder)
        assert done.returncode == 0, done.stderr


class PgBouncer(Server):
    """PgBouncer in transaction mode, in front of a PostgreSQL, for every database there."""

    name = "pgbouncer"
    stop_signal = signal.SIGTERM

    def __init__(self, folder: Path, server: Postgres, *, pool_size: int) -> None:
        super().__init__(folder)
        self.program = find("pgbouncer")
        (folder / "userlist.txt").write_text(f'"{OWNER}" ""\n')
        (folder / "pgbouncer.ini").write_text(self._config(server, pool_size))
        for file in folder.iterdir():
            self.hand_over(file)

    def _config(self, server: Postgres, pool_size: int) -> str:
        """The documented file, with the addresses and the pool of this test, and nobody needs a password."""
        sample: str
        (sample,) = re.findall(r"```ini\n(.*?)```", (ROOT / "docs" / "operating.md").read_text(), re.DOTALL)
        address = f"host=127.0.0.1 port={server.port}"
        for said, meant in {
            "plaudit = host=10.0.0.5 port=5432 dbname=plaudit": f"* = {address}\n"
            f"{ONE_CONNECTION} = {address} dbname={OWNER} pool_size=1",
            "default_pool_size = 20": f"default_pool_size = {pool_size}",
            "listen_addr = 10.0.0.5": "listen_addr = 127.0.0.1\nunix_socket_dir =",
            "listen_port = 6432": f"listen_port = {self.port}",
            "auth_type = scram-sha-256": "auth_type = trust",
            "/etc/pgbouncer/": f"{self.folder}/",
        }.items():
            assert said in sample
            sample = sample.replace(said, meant)
        return sample

    def command(self) -> list[str]:
        return [self.program, str(self.folder / "pgbouncer.ini")]

    def url(self, database: str = OWNER) -> str:
        return f"postgresql://{OWNER}@127.0.0.1:{self.port}/{database}"
