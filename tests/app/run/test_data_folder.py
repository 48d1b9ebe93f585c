"""The data folder: who has its servers, and what in it only its owner may read."""

import json
import os
from pathlib import Path

import pytest

from app.run import data_folder
from app.run.data_folder import Addresses, LocalServersError

ADDRESSES = Addresses("postgresql://owner@h/d", "postgresql://service@h/d", "redis://h/0")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return data_folder.prepare(tmp_path / "new" / "data")


def mode_of(file: Path) -> int:
    return file.stat().st_mode & 0o777


def test_a_lock_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "servers.lock").symlink_to(tmp_path / "victim")
    with pytest.raises(LocalServersError, match="--data-dir"):
        data_folder.prepare(tmp_path / "data")
    assert not (tmp_path / "victim").exists()


def test_a_new_folder_is_passable_and_an_existing_one_keeps_its_mode(folder: Path, tmp_path: Path) -> None:
    assert mode_of(folder) == 0o711
    folder.chmod(0o700)
    assert data_folder.prepare(folder) == folder
    assert mode_of(folder) == 0o700
    (tmp_path / "file").touch()
    with pytest.raises(LocalServersError, match="--data-dir"):
        data_folder.prepare(tmp_path / "file" / "data")


def test_a_folder_has_one_plaudit_up(folder: Path) -> None:
    assert data_folder.wait_for_up(folder) is None
    with data_folder.lock_servers(folder, "up"):
        with pytest.raises(LocalServersError, match=rf"running on .* already \(process {os.getpid()}\)"):
            data_folder.lock_servers(folder, "up").__enter__()
        data_folder.write_state(folder, "up", ADDRESSES)
        assert data_folder.wait_for_up(folder) == ADDRESSES
        assert mode_of(folder / "servers.json") == 0o600
    assert data_folder.wait_for_up(folder) is None
    assert not (folder / "servers.json").exists()


def test_a_command_waits_for_another_commands_servers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with data_folder.lock_servers(folder, "command"):
        data_folder.write_state(folder, "command", ADDRESSES)
        assert data_folder.wait_for_up(folder) is None, "they end with their command"
        monkeypatch.setattr(data_folder, "WAIT_FOR_OTHERS_S", 0)
        with pytest.raises(LocalServersError, match="in use by another command"):
            data_folder.lock_servers(folder, "command").__enter__()
    with data_folder.lock_servers(folder, "command"):
        pass


def test_an_up_that_never_has_servers_is_not_waited_for_for_ever(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_folder, "WAIT_FOR_OTHERS_S", 0)
    with data_folder.lock_servers(folder, "up"), pytest.raises(LocalServersError, match="could not start its servers"):
        data_folder.wait_for_up(folder)


def test_a_folder_is_new_until_a_server_was_started_in_it(folder: Path) -> None:
    assert data_folder.is_new(folder)
    data_folder.read_secrets(folder)
    assert not data_folder.is_new(folder)


def test_secrets_are_generated_once_and_added_where_one_is_missing(folder: Path) -> None:
    first = data_folder.read_secrets(folder)
    assert len({*first.values()}) == len(first) == 5
    assert data_folder.read_secrets(folder) == first
    assert mode_of(folder / "secrets.json") == 0o600
    kept = {name: value for name, value in first.items() if name != "superuser_password"}  # as in earlier releases
    data_folder.write_private(folder / "secrets.json", json.dumps(kept))
    again = data_folder.read_secrets(folder)
    assert again == data_folder.read_secrets(folder)
    assert {**again, **kept} == again
    assert again.keys() == first.keys()


@pytest.mark.parametrize("kind", ["symlink", "hard link", "pipe", "folder"])
def test_no_other_file_is_opened_as_ours(kind: str, tmp_path: Path) -> None:
    victim, file = tmp_path / "victim", tmp_path / "file"
    victim.write_text("precious")
    match kind:
        case "symlink":
            file.symlink_to(victim)
        case "hard link":
            file.hardlink_to(victim)
        case "pipe":
            os.mkfifo(file)
        case _:
            file.mkdir()
    with pytest.raises(OSError, match=str(file)):
        data_folder.open_private(file)
    assert victim.read_text() == "precious"


def test_our_file_is_appended_to_and_becomes_private(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"one\n")
    file.chmod(0o644)
    with data_folder.open_private(file) as opened:
        assert opened.read() == b"one\n"
        opened.write(b"two\n")
    assert file.read_bytes() == b"one\ntwo\n"
    assert mode_of(file) == 0o600
