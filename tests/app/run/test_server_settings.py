"""What the local PostgreSQL is told: by the machine's size, durable, and valid for the next start of an old folder."""

from pathlib import Path

import psycopg
import pytest

from app.machine import machine_memory
from app.run import server_settings
from app.run.server_settings import GB, for_postgres
from tests.app.run.conftest import RunningServers


@pytest.mark.parametrize(
    ("memory", "free_disk", "buffers", "log"),
    [
        (256 * 2**20, GB, "128MB", "1024MB"),
        (8 * GB, 40 * GB, "2048MB", "4096MB"),
        (512 * GB, 4096 * GB, "4096MB", "8192MB"),
    ],
)
def test_memory_and_disk_are_used_in_proportion_and_with_bounds(
    memory: int, free_disk: int, buffers: str, log: str
) -> None:
    settings = for_postgres(memory=memory, free_disk=free_disk, counts_statements=False)
    assert (settings["shared_buffers"], settings["max_wal_size"]) == (buffers, log)


def test_nothing_is_bought_with_durability() -> None:
    settings = for_postgres(memory=8 * GB, free_disk=40 * GB, counts_statements=True)
    assert not {"fsync", "full_page_writes", "synchronous_commit", "wal_sync_method"} & settings.keys()


def test_the_server_has_them(running_servers: RunningServers) -> None:
    memory, free = machine_memory(), server_settings.free_disk(running_servers[0].data_dir)
    wanted = for_postgres(memory=memory, free_disk=free, counts_statements=False)
    with psycopg.connect(running_servers[0].logins.superuser_url) as server:
        for name in ("checkpoint_timeout", "jit", "random_page_cost", "autovacuum_naptime", "timezone"):
            assert server.execute(f"SHOW {name}").fetchone() == (wanted[name],), name
        buffers = server.execute("SELECT pg_size_bytes(current_setting('shared_buffers'))").fetchone()
        assert buffers == (int(wanted["shared_buffers"].removesuffix("MB")) * 2**20,)


def test_the_extension_is_found_where_it_comes_along(tmp_path: Path) -> None:
    binary = tmp_path / "bin" / "postgres"
    assert not server_settings.has_statements(binary)
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "pg_stat_statements.so").touch()
    assert server_settings.has_statements(binary)
