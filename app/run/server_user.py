"""The operating system's user that the embedded servers run as when root starts them.

PostgreSQL does not run as root. `nobody` would not do: other daemons run as it too and could read the data. So the
servers get a number of their own, which no account has; nothing on the machine has to be changed for that. Where an
account `plaudit` exists, it is used.
"""

import contextlib
import grp
import os
import pwd
import stat
from dataclasses import dataclass
from pathlib import Path

from app.run.data_folder import EmbeddedError

ACCOUNT = "plaudit"
# Numbers that neither distributions nor systemd nor containers give to anybody.
UNUSED_IDS = range(60_578, 61_184)
# Whom earlier releases ran the servers as.
FORMER_ACCOUNTS = ("postgres", "nobody")


@dataclass(frozen=True)
class User:
    uid: int
    gid: int

    @property
    def argument(self) -> str:
        return f"{self.uid}:{self.gid}"


def choose() -> User:
    """The account `plaudit`, or a user and a group of our own without a name."""
    with contextlib.suppress(KeyError):
        account = pwd.getpwnam(ACCOUNT)
        return User(account.pw_uid, account.pw_gid)
    taken = {entry.pw_uid for entry in pwd.getpwall()} | {entry.gr_gid for entry in grp.getgrall()}
    number = next((number for number in UNUSED_IDS if number not in taken), None)
    if number is None:
        raise EmbeddedError("PostgreSQL does not run as root: run Plaudit as an ordinary user")
    return User(number, number)


def with_a_name(user: User) -> User:
    """Whom initdb may run as: it wants an account, and gets `nobody`'s number where ours has none.

    The group stays ours, so other processes of `nobody` can neither trace it nor pass a folder that is open to the
    group only.
    """
    with contextlib.suppress(KeyError):
        return User(pwd.getpwuid(user.uid).pw_uid, user.gid)
    account = next((entry for entry in pwd.getpwall() if entry.pw_name == "nobody"), None)
    account = account or next((entry for entry in pwd.getpwall() if entry.pw_uid != 0), None)
    if account is None:
        raise EmbeddedError("PostgreSQL does not run as root and this machine knows no other user")
    return User(account.pw_uid, user.gid)


def can_reach(path: Path, user: User) -> bool:
    """Whether this user gets through every folder above (and may run the file, if it is one)."""

    def allows(entry: Path) -> bool:
        info = entry.stat()
        wanted = stat.S_IXUSR if info.st_uid == user.uid else stat.S_IXGRP if info.st_gid == user.gid else stat.S_IXOTH
        return bool(info.st_mode & wanted)

    return all(allows(entry) for entry in [path, *path.parents] if entry.exists())


def give(folder: Path, user: User, *, of: set[int]) -> None:
    """Make `user` the owner of the folder and of all in it that belongs to one of these.

    The folder itself comes last: until all is done it shows that it is not. No link is followed.
    """
    if folder.is_symlink():
        raise EmbeddedError(f"{folder} is a link, not a folder of data")
    for _, folders, files, opened in os.fwalk(folder, topdown=False):
        for name in [*files, *folders]:
            if os.stat(name, dir_fd=opened, follow_symlinks=False).st_uid in of:
                os.chown(name, user.uid, user.gid, dir_fd=opened, follow_symlinks=False)
    os.chown(folder, user.uid, user.gid, follow_symlinks=False)


def take_over(folder: Path, user: User) -> None:
    """Give `user` the data that an earlier release's servers wrote as somebody else."""
    former = set(UNUSED_IDS)
    for name in FORMER_ACCOUNTS:
        with contextlib.suppress(KeyError):
            former.add(pwd.getpwnam(name).pw_uid)
    if folder.lstat().st_uid in former - {user.uid}:
        give(folder, user, of=former)
