"""As whom the local servers run when root starts them, and whose their files are."""

import contextlib
import os
import pwd
from pathlib import Path

import pytest

from app.run import server_user
from app.run.data_folder import LocalServersError
from app.run.server_user import User
from tests.app.run.conftest import RunningServers, as_root, servers_of
from tests.conftest import reachable_folder


@as_root
def test_the_servers_run_as_a_user_that_no_other_program_has(running_servers: RunningServers) -> None:
    servers, processes = running_servers
    for process in processes.values():
        uid = Path(f"/proc/{process.pid}").stat().st_uid
        name = next((entry.pw_name for entry in pwd.getpwall() if entry.pw_uid == uid), None)
        assert name in {None, "plaudit"}, "other programs run as this user"
    data = servers.data_dir / f"postgres-{servers.version}"
    owners = set()
    for path in [data, *data.rglob("*")]:
        with contextlib.suppress(FileNotFoundError):  # PostgreSQL has deleted it meanwhile
            owners.add(path.lstat().st_uid)
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


def test_the_user_is_the_account_plaudit_or_an_id_that_nobody_has(monkeypatch: pytest.MonkeyPatch) -> None:
    account = pwd.getpwall()[0]
    monkeypatch.setattr(server_user, "ACCOUNT", account.pw_name)
    assert server_user.choose() == User(account.pw_uid, account.pw_gid)
    monkeypatch.setattr(server_user, "ACCOUNT", "no-such-account")
    chosen = server_user.choose()
    assert chosen.uid == chosen.gid
    assert chosen.uid in server_user.UNUSED_IDS
    assert chosen.uid not in {entry.pw_uid for entry in pwd.getpwall()}
    monkeypatch.setattr(server_user, "UNUSED_IDS", range(1))  # all taken, by root
    with pytest.raises(LocalServersError, match="ordinary user"):
        server_user.choose()


def test_initdb_runs_as_an_account_with_the_servers_group() -> None:
    unused = next(number for number in server_user.UNUSED_IDS if number not in {e.pw_uid for e in pwd.getpwall()})
    named = server_user.named_user(User(unused, unused))
    assert pwd.getpwuid(named.uid).pw_uid != 0
    assert named.gid == unused
    account = pwd.getpwall()[-1]
    assert server_user.named_user(User(account.pw_uid, unused)) == User(account.pw_uid, unused)


@pytest.mark.parametrize(
    ("mode", "who", "reaches"),
    [
        (0o700, "owner", True),
        (0o700, "group", False),
        (0o710, "group", True),
        (0o710, "other", False),
        (0o711, "other", True),
        (0o655, "owner", False),  # a right of the others is not the owner's
    ],
)
def test_a_user_must_pass_every_folder_above(mode: int, who: str, reaches: bool) -> None:
    with reachable_folder() as outer:
        folder = outer / "folder"
        folder.mkdir()
        folder.chmod(mode)
        info = folder.stat()
        users = {
            "owner": User(info.st_uid, 60_600),
            "group": User(60_600, info.st_gid),
            "other": User(60_600, 60_600),
        }
        assert server_user.can_reach(folder, users[who]) == reaches
        folder.chmod(0o700)


@as_root
def test_only_files_of_former_users_change_their_owner(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for name, uid in {"theirs": 60_601, "somebody_elses": 12_345}.items():
        (data / name).touch()
        os.chown(data / name, uid, uid)
    server_user.change_owner(data, User(60_602, 60_602), former={60_601})
    owners = {path.name: path.stat().st_uid for path in [data, *data.iterdir()]}
    assert owners == {"data": 60_602, "theirs": 60_602, "somebody_elses": 12_345}
    (tmp_path / "link").symlink_to(data)
    with pytest.raises(LocalServersError, match="is a link"):
        server_user.change_owner(tmp_path / "link", User(0, 0), former={60_602})
