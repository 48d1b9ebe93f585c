"""The servers that come along: how they are started, and what they let their clients do."""

import pytest
from redis import Redis
from redis.exceptions import ResponseError

from app.run import data_folder
from tests.app.run.conftest import RunningServers, servers_of
from tests.conftest import reachable_folder


def test_valkey_takes_no_debug_command(running_servers: RunningServers) -> None:
    with (
        Redis.from_url(running_servers[0].addresses.redis_url) as redis,
        pytest.raises(ResponseError, match="not allowed"),
    ):
        redis.execute_command("DEBUG", "SLEEP", "0")


def test_no_other_process_is_given_the_superusers_password(running_servers: RunningServers) -> None:
    servers, _ = running_servers
    state = (servers.data_dir / "servers.json").read_text()
    assert servers.logins.superuser_password not in state
    assert servers.logins.owner_password in state


def test_what_an_interrupted_start_left_is_no_data_of_another_version() -> None:
    with reachable_folder() as path:
        folder = data_folder.prepare(path / "data")
        (folder / "postgres-18.new" / "data").mkdir(parents=True)
        with servers_of(folder) as (servers, _):
            assert servers.are_up()
