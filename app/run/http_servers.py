"""What `plaudit web` and `plaudit live` run.

The API is served on an event loop with threads behind it (`app.server`). Sockets are served by gunicorn's gevent
worker, where an open socket costs no thread. The application depends on neither: `wsgi.py` serves it under any WSGI
server.
"""

import os
import sys
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from app.machine import fit_in_memory
from app.run.launcher import die_with_parent
from app.server import open_files
from app.server.listening import CannotStart, PortInUse, require_free
from app.settings import Settings, socket_address

if TYPE_CHECKING:
    from app.server.front import Front

MAX_LIVE_CONNECTIONS = 10_000
# Sockets may take this part of the memory. Measured: 124 MB for 1,000 that get messages.
LIVE_MEMORY_SHARE, SOCKET_BYTES = 4, 128 * 1024
# Of the files that the live process may have open, for everything but connections.
RESERVED_FILES = 256
# Where gunicorn's worker shows its master, by the time of an empty file, that it is alive.
IN_MEMORY = "/dev/shm"  # noqa: S108  a folder, and no name of a file
# After it was drained.
STOP_LIVE_WITHIN_S = 5


def serve_web(settings: Settings) -> None:
    """Serve the API in `web_processes` processes until stopped."""
    # Imported before the fork, so that the processes share them.
    import app.server.front
    import app.web  # noqa: F401
    from app.server import processes
    from tenants import logs

    logs.configure(service="web", log_format=settings.log_format)
    load = partial(_load, settings, os.getpid())
    try:
        processes.serve(
            load,
            host=settings.host,
            port=settings.port,
            processes=settings.web_processes,
            drain_s=settings.drain_s,
        )
    except CannotStart as error:
        raise SystemExit(str(error)) from None


def _load(settings: Settings, parent: int) -> "Front":
    """Runs in each process of the server."""
    die_with_parent(parent)
    from app.http.services import services_of
    from app.server.front import Front
    from app.web import create_app

    app = create_app(settings)
    return Front(app, services_of(app))


def serve_live(settings: Settings) -> NoReturn:
    """Become gunicorn: its gevent worker must patch the standard library before our modules are imported.

    A port that it could not use is said in one line here; gunicorn would try for seconds, with lines of its own.
    """
    try:
        require_free(settings.host, settings.live_port)
    except PortInUse as error:
        raise SystemExit(str(error)) from None
    command = [
        *(sys.executable, "-m", "gunicorn", "app.live.server:create_live_app()"),
        *("--worker-class", "app.live.worker.LiveWorker", "--workers", "1"),
        *("--worker-connections", str(_max_live_connections()), "--keep-alive", "75"),
        *("--bind", socket_address(settings.host, settings.live_port)),
        *("--graceful-timeout", str(settings.drain_s + STOP_LIVE_WITHIN_S)),
        *("--log-level", "warning", "--no-control-socket", "--config", "python:app.live.gunicorn_config"),
    ]
    if os.access(IN_MEMORY, os.W_OK):  # else it looks for a folder by writing a file, and a full disk has none
        command += ["--worker-tmp-dir", IN_MEMORY]
    os.execv(sys.executable, command)


def _max_live_connections() -> int:
    """As many as files and memory allow. gunicorn, which this process becomes, inherits the limit of files."""
    in_memory = fit_in_memory(SOCKET_BYTES, share=LIVE_MEMORY_SHARE)
    return open_files.allow(min(MAX_LIVE_CONNECTIONS, in_memory), reserved=RESERVED_FILES)
