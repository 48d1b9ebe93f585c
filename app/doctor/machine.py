"""This machine: versions, secrets, addresses, disk space."""

import ipaddress
import platform
import shutil
import stat
from collections.abc import Iterable
from importlib.metadata import version

from app.doctor.findings import Finding, ok, problem, size, warn
from app.doctor.installation import Installation

ABOUT = "This machine"
MIN_FREE_BYTES, MIN_FREE_SHARE = 5 * 2**30, 0.1
# Below this PostgreSQL may stop at any moment: it needs room for its log.
VERY_FEW_BYTES = 2**30
MIN_DIFFERENT_CHARACTERS = 10


def versions() -> dict[str, str]:
    return {"plaudit": version("plaudit"), "python": platform.python_version()}


def secret_key(installation: Installation) -> Iterable[Finding]:
    key = installation.settings.secret_key
    if key is None and not installation.is_local:
        yield problem(
            ABOUT,
            "PLAUDIT_SECRET_KEY is not set",
            why="web, live, worker and cron do not start without it beside DATABASE_URL",
            advice="set it to at least 32 random characters, the same for all processes",
        )
    elif key is not None and len(set(key)) < MIN_DIFFERENT_CHARACTERS:
        yield warn(
            ABOUT,
            f"PLAUDIT_SECRET_KEY has only {len(set(key))} different characters",
            why="signing keys are encrypted with it: it must not be guessed",
            advice="use a random one, e.g. of openssl rand -base64 48, and run plaudit signing-key rotate",
        )
    else:
        yield ok(ABOUT, "There is a secret key")


def secrets_file(installation: Installation) -> Iterable[Finding]:
    """The data folder's passwords must be readable by their owner only."""
    file = installation.data_dir / "secrets.json"
    if not installation.is_local or not file.exists():
        return
    mode = stat.S_IMODE(file.stat().st_mode)
    if mode & 0o077:
        yield problem(
            ABOUT,
            f"{file} can be read by others (mode {mode:o})",
            why="it has the passwords of the local servers and the secret key",
            advice=f"chmod 600 {file}",
        )


def public_url(installation: Installation) -> Iterable[Finding]:
    settings = installation.settings
    if not settings.has_public_url and not _is_loopback(settings.host):
        yield warn(
            ABOUT,
            f"It listens on {settings.host}, and PLAUDIT_PUBLIC_URL is not set",
            why=f"tokens and links name {settings.public_url}, which is another place on other machines",
            advice="set PLAUDIT_PUBLIC_URL to the address that people use",
        )
    else:
        yield ok(ABOUT, f"People use {settings.public_url}")


def disk_space(installation: Installation) -> Iterable[Finding]:
    if not installation.data_dir.exists():
        return
    # Started by root, the data may be elsewhere: see app/run/server_files.py.
    data = (installation.data_dir / "postgres-home").resolve()
    where = data if data.exists() else installation.data_dir
    usage = shutil.disk_usage(where)
    what = f"{size(usage.free)} of {size(usage.total)} are free in {where}"
    why = "a full disk stops the local PostgreSQL" if installation.is_local else "metrics are stored there"
    advice = "free some space, or move the folder (--data-dir)"
    if installation.is_local and usage.free < VERY_FEW_BYTES:
        yield problem(ABOUT, what, why=why, advice=advice)
    elif installation.is_local and (usage.free < MIN_FREE_BYTES or usage.free < MIN_FREE_SHARE * usage.total):
        yield warn(ABOUT, what, why=why, advice=advice)
    else:
        yield ok(ABOUT, what)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
