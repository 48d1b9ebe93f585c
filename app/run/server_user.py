"""The operating system's user that the local servers run as when root starts them.

PostgreSQL does not run as root. `nobody` is not safe: other daemons run as it too and could read the data. So the
servers get a user id that no account has, which needs no change to the machine. If an account `plaudit` exists, it is
used.
"""

import contextlib
import grp
import os
import pwd
import stat
from dataclasses import dataclass
from pathlib import Path

from app.run.data_folder import LocalServersError

ACCOUNT = "plaudit"
# User ids that neither distributions nor systemd nor containers assign.
UNUSED_IDS = range(60_578, 61_184)
# The accounts that earlier releases ran the servers as.
FORMER_ACCOUNTS = ("postgres", "nobody")


@dataclass(frozen=True)
class User:
    uid: int
    gid: int

    @property
    def argument(self) -> str:
        return f"{self.uid}:{self.gid}"


def choose() -> User:
    """The account `plaudit`, or an unused user id and group id."""
    with contextlib.suppress(KeyError):
        account = pwd.getpwnam(ACCOUNT)
        return User(account.pw_uid, account.pw_gid)
    taken = {entry.pw_uid for entry in pwd.getpwall()} | {entry.gr_gid for entry in grp.getgrall()}
    number = next((number for number in UNUSED_IDS if number not in taken), None)
    if number is None:
        raise LocalServersError("PostgreSQL does not run as root: run Plaudit as an ordinary user")
    return User(number, number)


def named_user(user: User) -> User:
    """The user for initdb, which requires an account: `nobody` if `user` has none.

    The group stays ours, so other processes of `nobody` can neither trace initdb nor pass a folder that is open to the
    group only.
    """
    with contextlib.suppress(KeyError):
        return User(pwd.getpwuid(user.uid).pw_uid, user.gid)
    account = next((entry for entry in pwd.getpwall() if entry.pw_name == "nobody"), None)
    account = account or next((entry for entry in pwd.getpwall() if entry.pw_uid != 0), None)
    if account is None:
        raise LocalServersError("PostgreSQL does not run as root and this machine has no other user")
    return User(account.pw_uid, user.gid)


def can_reach(path: Path, user: User) -> bool:
    """Whether this user may pass every folder above (and may run the file, if it is one)."""

    def allows(entry: Path) -> bool:
        info = entry.stat()
        wanted = stat.S_IXUSR if info.st_uid == user.uid else stat.S_IXGRP if info.st_gid == user.gid else stat.S_IXOTH
        return bool(info.st_mode & wanted)

    return all(allows(entry) for entry in [path, *path.parents] if entry.exists())


def change_owner(folder: Path, user: User, *, former: set[int]) -> None:
    """Make `user` the owner of the folder and of everything in it that belongs to one of the former user ids.

    The folder itself comes last: its owner shows whether all is done. Links are not followed.
    """
    if folder.is_symlink():
        raise LocalServersError(f"{folder} is a link, not a folder of data")
    for _, folders, files, opened in os.fwalk(folder, topdown=False):
        for name in [*files, *folders]:
            if os.stat(name, dir_fd=opened, follow_symlinks=False).st_uid in former:
                os.chown(name, user.uid, user.gid, dir_fd=opened, follow_symlinks=False)
    os.chown(folder, user.uid, user.gid, follow_symlinks=False)


def take_over(folder: Path, user: User) -> None:
    """Make `user` the owner of data that an earlier release's servers wrote as another user."""
    former = set(UNUSED_IDS)
    for name in FORMER_ACCOUNTS:
        with contextlib.suppress(KeyError):
            former.add(pwd.getpwnam(name).pw_uid)
    if folder.lstat().st_uid in former - {user.uid}:
        change_owner(folder, user, former=former)
