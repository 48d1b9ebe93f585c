"""The environment of a process that is started by hand. Imports little: `plaudit worker` becomes another program."""

import os
from pathlib import Path

from app import datadir
from app.datadir import EmbeddedError
from app.settings import SettingsError


def complete_environment(data_dir: Path, *, need_database: bool = True) -> None:
    """For a process started by hand: what `plaudit up` would have given it, from a running one or from this folder."""
    if need_database and not os.environ.get("DATABASE_URL") and not os.environ.get("PLAUDIT_SERVICE_DATABASE_URL"):
        data_dir = datadir.prepare(data_dir)
        addresses = datadir.wait_for_up(data_dir)
        if addresses is None:
            raise EmbeddedError(
                "No database: start `plaudit up` on this data folder, or set DATABASE_URL and REDIS_URL"
            )
        os.environ["DATABASE_URL"] = addresses.database_url
        os.environ["PLAUDIT_SERVICE_DATABASE_URL"] = addresses.service_database_url
        os.environ.setdefault("REDIS_URL", addresses.redis_url)
        os.environ.setdefault("PROMETHEUS_MULTIPROC_DIR", str(data_dir / "metrics"))
    elif need_database and not os.environ.get("PLAUDIT_SECRET_KEY"):
        raise SettingsError(
            "PLAUDIT_SECRET_KEY must be set beside DATABASE_URL: at least 32 characters, the same for all processes"
        )
    if not os.environ.get("PLAUDIT_SECRET_KEY"):
        os.environ["PLAUDIT_SECRET_KEY"] = datadir.read_secrets(datadir.prepare(data_dir))["secret_key"]
    if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
        metrics = datadir.prepare(data_dir) / "metrics"
        metrics.mkdir(mode=0o700, exist_ok=True)
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(metrics)
