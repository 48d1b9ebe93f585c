"""The data folder: who has its servers, and what in it only its owner may read."""

import fcntl
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from app.run import data_folder, lock_holders
from app.run.data_folder import Addresses, LocalServersError
from tests.service import eventually

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


# Starts a "server" that ignores what it can, and waits: takes the lock as `plaudit up` does.
HOLDER = """if True:
    import subprocess, sys, time
    from pathlib import Path
    from app.run import data_folder, lock_holders
    with data_folder.lock_servers(Path(sys.argv[1]), "up") as lock:
        script = "trap '' INT QUIT TERM; while :; do sleep 0.1; done"
        print(subprocess.Popen([sys.argv[2], "-c", script], pass_fds=[lock.fileno()]).pid, flush=True)
        time.sleep(600)
"""


@pytest.mark.parametrize("wanted_by", ["up", "command"])
def test_servers_of_a_killed_up_are_ended_by_whoever_wants_the_folder(
    wanted_by: data_folder.Holder, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_folder, "ORPHANS_WITHIN_S", 0.2)
    shutil.copy("/bin/sh", tmp_path / "postgres")
    command = [sys.executable, "-c", HOLDER, str(folder), str(tmp_path / "postgres")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as up:
        assert up.stdout is not None
        server = psutil.Process(int(up.stdout.readline()))
        with pytest.raises(LocalServersError, match=f"already .process {up.pid}."):
            data_folder.lock_servers(folder, "up").__enter__()
        assert server.is_running()
        up.kill()
        eventually(lambda: lock_holders.started_at(up.pid) is None)  # a process still, whose status nobody has read
        if wanted_by == "up":
            with data_folder.lock_servers(folder, "up"):
                pass
        else:
            assert data_folder.wait_for_up(folder) is None
    assert psutil.wait_procs([server], timeout=10)[1] == []


def test_the_id_of_an_up_that_was_killed_may_be_another_processes_by_now(folder: Path) -> None:
    with (folder / "servers.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        data_folder.write_state(folder, "up", ADDRESSES)
        state = json.loads((folder / "servers.json").read_text())
        assert data_folder.wait_for_up(folder) == ADDRESSES
        fcntl.flock(lock, fcntl.LOCK_UN)
        (folder / "servers.json").write_text(json.dumps(state | {"started_at": state["started_at"] - 1}))
        with data_folder.lock_servers(folder, "up"):
            pass
