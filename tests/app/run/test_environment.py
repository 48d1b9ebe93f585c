"""What a process of ours is started with, and what one that is started by hand finds for itself."""

import os
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from app.run import data_folder, environment
from app.run.data_folder import Addresses, LocalServersError
from app.settings import Settings, SettingsError

ADDRESSES = Addresses("postgresql://owner@h/d", "postgresql://service@h/d", "redis://local/0")
OURS = ("PLAUDIT_", "DATABASE_URL", "REDIS_URL", "PROMETHEUS_", "LOG_FORMAT", "NO_COLOR", "FORCE_COLOR")


@pytest.fixture(autouse=True)
def env() -> Iterator[None]:
    """An environment without settings, and restored at the end."""
    with mock.patch.dict(os.environ):
        for name in [name for name in os.environ if name.startswith(OURS)]:
            del os.environ[name]
        yield


def for_children(data_dir: Path, *, is_terminal: bool = False, **env: str) -> dict[str, str]:
    environment.keep_metrics_in(data_dir)
    settings = Settings.from_env(env)
    return environment.for_children(settings, ADDRESSES, data_dir=data_dir, live_port=8001, is_terminal=is_terminal)


def test_a_redis_that_the_operator_named_stays() -> None:
    assert environment.with_addresses(ADDRESSES)["REDIS_URL"] == "redis://local/0"
    os.environ["REDIS_URL"] = "redis://theirs/0"
    env = environment.with_addresses(ADDRESSES)
    assert (env["REDIS_URL"], env["DATABASE_URL"]) == ("redis://theirs/0", "postgresql://owner@h/d")
    assert env["PLAUDIT_SERVICE_DATABASE_URL"] == "postgresql://service@h/d"


def test_children_find_everything_in_their_environment(tmp_path: Path) -> None:
    (tmp_path / "metrics").mkdir()
    (tmp_path / "metrics" / "of_an_earlier_start.db").touch()
    env = for_children(tmp_path)
    settings = Settings.from_env(env)
    assert (settings.database_url, settings.redis_url) == (ADDRESSES.database_url, ADDRESSES.redis_url)
    assert settings.secret_key == data_folder.read_secrets(tmp_path)["secret_key"]
    assert settings.metrics_dir == tmp_path / "metrics"
    assert [*(tmp_path / "metrics").iterdir()] == []
    assert (tmp_path / "metrics").stat().st_mode & 0o777 == 0o700
    assert for_children(tmp_path, PLAUDIT_SECRET_KEY="o" * 32)["PLAUDIT_SECRET_KEY"] == "o" * 32


@pytest.mark.parametrize(
    ("is_terminal", "env", "expected"),
    [
        (False, {}, ("json", None)),
        (True, {}, ("console", "1")),
        (True, {"NO_COLOR": "1"}, ("console", None)),
        (True, {"LOG_FORMAT": "json"}, ("json", "1")),
    ],
)
def test_logs_are_for_people_on_a_terminal(
    is_terminal: bool, env: dict[str, str], expected: tuple[str, str | None], tmp_path: Path
) -> None:
    found = for_children(tmp_path, is_terminal=is_terminal, **env)
    assert (found["LOG_FORMAT"], found.get("FORCE_COLOR")) == expected


def test_a_child_learns_its_parent_and_does_not_pass_it_on() -> None:
    os.environ.update(environment.for_child({}, NAME="value"))
    assert os.environ["NAME"] == "value"
    assert environment.take_parent_pid() == os.getpid()
    assert environment.take_parent_pid() is None
    assert not {name for name in environment.inherited() if "PARENT" in name}


def test_a_process_started_by_hand_uses_the_servers_of_a_running_up(tmp_path: Path) -> None:
    data_dir = data_folder.prepare(tmp_path / "data")
    with pytest.raises(LocalServersError, match="plaudit up"):
        environment.complete(data_dir)
    with data_folder.lock_servers(data_dir, "up"):
        data_folder.write_state(data_dir, "up", ADDRESSES)
        settings = environment.complete(data_dir, PLAUDIT_PORT="8123")
    assert (settings.port, settings.database_url) == (8123, ADDRESSES.database_url)
    assert settings.secret_key == data_folder.read_secrets(data_dir)["secret_key"]
    assert settings.metrics_dir == data_dir / "metrics"


@pytest.mark.parametrize("variable", ["DATABASE_URL", "PLAUDIT_SERVICE_DATABASE_URL"])
def test_beside_a_named_database_the_redis_must_be_named_too(variable: str, tmp_path: Path) -> None:
    """`plaudit up` starts its own; a single process would silently do without."""
    os.environ["PLAUDIT_SECRET_KEY"] = "o" * 32
    with pytest.raises(SettingsError, match=r"^REDIS_URL must be set beside DATABASE_URL$"):
        environment.complete(tmp_path, **{variable: "postgresql://theirs@h/d"})


def test_beside_a_named_database_the_key_must_be_named_too(tmp_path: Path) -> None:
    """Processes on several machines would otherwise sign with keys that the others cannot read."""
    os.environ["REDIS_URL"] = "redis://theirs/0"
    with pytest.raises(SettingsError, match="PLAUDIT_SECRET_KEY"):
        environment.complete(tmp_path, DATABASE_URL="postgresql://theirs@h/d")
    os.environ["PLAUDIT_SECRET_KEY"] = "o" * 32
    settings = environment.complete(tmp_path)
    assert (settings.database_url, settings.secret_key) == ("postgresql://theirs@h/d", "o" * 32)
    assert settings.metrics_dir is not None
    assert settings.metrics_dir.is_dir()
