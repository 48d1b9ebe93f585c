"""The environment of the processes that we start, assembled in one place. `app/settings.py` reads it."""

import contextlib
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from app.run import data_folder
from app.run.data_folder import Addresses, LocalServersError
from app.settings import Settings, SettingsError

PARENT_PID = "PLAUDIT_PARENT_PID"


def inherited(**changes: str) -> dict[str, str]:
    """This process's environment with these changes: for any program that it starts."""
    return {**os.environ, **changes}


def with_addresses(addresses: Addresses, **changes: str) -> dict[str, str]:
    """The same, with the addresses of these servers. A Redis that the operator named stays."""
    env = inherited(**changes, DATABASE_URL=addresses.database_url)
    if addresses.service_database_url:
        env["PLAUDIT_SERVICE_DATABASE_URL"] = addresses.service_database_url
    if not env.get("REDIS_URL"):
        env["REDIS_URL"] = addresses.redis_url
    return env


def keep_metrics_in(data_dir: Path) -> None:
    """Have this process and those that it starts keep their metrics in this folder, without those of earlier ones.

    To be called before anything that has metrics is imported: their library reads it then.
    """
    shutil.rmtree(data_dir / "metrics", ignore_errors=True)
    _share_metrics_in(data_dir)


def for_children(
    settings: Settings, addresses: Addresses, *, data_dir: Path, live_port: int, is_terminal: bool
) -> dict[str, str]:
    """The environment of the processes of `plaudit up`: everything they need."""
    colours = {"FORCE_COLOR": "1"} if is_terminal and settings.allows_colours else {}
    return with_addresses(
        addresses,
        PLAUDIT_PORT=str(settings.port),
        PLAUDIT_LIVE_PORT=str(live_port),
        PLAUDIT_LIVE_URL=live_url(settings, live_port),
        PLAUDIT_SECRET_KEY=secret_key(settings, data_dir),
        PLAUDIT_DATA_DIR=str(data_dir),
        LOG_FORMAT=settings.log_format or ("console" if is_terminal else "json"),
        PYTHONUNBUFFERED="1",
        **colours,
    )


def live_url(settings: Settings, live_port: int) -> str:
    """Where clients find the live process: behind the public address, or on its own port."""
    return settings.live_url if settings.has_public_url else f"http://127.0.0.1:{live_port}"


def for_child(env: Mapping[str, str], **changes: str) -> dict[str, str]:
    """For one of our own processes, which ends with this one (`take_parent_pid`)."""
    return {**env, **changes, PARENT_PID: str(os.getpid())}


def replace(env: Mapping[str, str]) -> None:
    """Give this process another environment."""
    os.environ.clear()
    os.environ.update(env)


def take_parent_pid() -> int | None:
    """The process that this one must end with. Removed, so that programs we start do not read it."""
    pid = os.environ.pop(PARENT_PID, None)
    return None if pid is None else int(pid)


def complete(data_dir: Path, **changes: str) -> Settings:
    """For a process started by hand: what `plaudit up` would have given it, from a running one or from this folder.

    Sets this process's own environment, which the programs that it becomes and the metrics library read.
    """
    os.environ.update(changes)
    settings = Settings.from_env()
    if settings.database_url is None and settings.service_database_url is None:
        data_dir = data_folder.prepare(data_dir)
        addresses = data_folder.wait_for_up(data_dir)
        if addresses is None:
            raise LocalServersError(
                "No database: start `plaudit up` on this data folder, or set DATABASE_URL and REDIS_URL"
            )
        os.environ.update(with_addresses(addresses))
    elif settings.secret_key is None:
        raise SettingsError(
            "PLAUDIT_SECRET_KEY must be set beside DATABASE_URL: at least 32 characters, the same for all processes"
        )
    elif settings.redis_url is None:  # it would go on without boards and jobs, and nobody would look for a reason
        raise SettingsError("REDIS_URL must be set beside DATABASE_URL")
    os.environ["PLAUDIT_SECRET_KEY"] = secret_key(settings, data_dir)
    if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
        _share_metrics_in(data_folder.prepare(data_dir))
    return Settings.from_env()


def _share_metrics_in(data_dir: Path) -> None:
    metrics = data_dir / "metrics"
    with contextlib.suppress(OSError):  # without the folder processes count in memory, and say so
        metrics.mkdir(mode=0o700, exist_ok=True)
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(metrics)


def secret_key(settings: Settings, data_dir: Path) -> str:
    """The operator's, or the data folder's own."""
    return settings.secret_key or data_folder.read_secrets(data_folder.prepare(data_dir))["secret_key"]
