"""What `plaudit web` and `plaudit live` run.

The API is served by granian, on an event loop with threads behind it (`app.http.front`): by `make bench ARGS=servers`
granian answers about twice as many requests as gunicorn's threads, with a shorter tail of latencies. Sockets are served
by gunicorn's gevent worker, where an open socket costs no thread. The application depends on neither: `wsgi.py` serves
it under any WSGI server.
"""

import os
import sys
from functools import partial
from typing import Any, NoReturn

from app.run.launcher import die_with_parent
from app.settings import Settings

MAX_LIVE_CONNECTIONS = 10_000


def serve_web(settings: Settings) -> None:
    """Serve the API in `web_processes` processes until stopped."""
    from granian.constants import HTTPModes, Interfaces, Loops, TaskImpl
    from granian.log import LogLevels
    from granian.server import MPServer as Granian

    import app.web  # noqa: F401  imported before the fork, so that the processes share it
    from tenants import logs

    logs.configure(service="web", log_format=settings.log_format)
    server = Granian(
        "wsgi:application",
        address=settings.host,
        port=settings.port,
        interface=Interfaces.RSGI,
        loop=Loops.uvloop,
        workers=settings.web_processes,
        task_impl=TaskImpl.rust,
        http=HTTPModes.http1,  # as proxies speak; HTTP/2 has bodies without a length, which WSGI does not know
        websockets=False,  # the live process has them
        backlog=2048,
        log_level=LogLevels.error,
        log_dictconfig=_plain_logging(),
        respawn_failed_workers=True,
        respawn_interval=0.5,
        workers_kill_timeout=4,
    )
    server.serve(target_loader=partial(_load, settings, os.getpid()), wrap_loader=False)


def _load(settings: Settings, parent: int) -> Any:
    """Runs in each of granian's processes."""
    die_with_parent(parent)
    from app.http import stalled_readers
    from app.http.front import Front
    from app.http.services import services_of
    from app.web import create_app
    from tenants import logs

    logs.configure(service="web", log_format=settings.log_format)
    stalled_readers.set_timeout_when_listening(settings.port)
    app = create_app(settings)
    return Front(app, services_of(app))


def serve_live(settings: Settings) -> NoReturn:
    """Become gunicorn: its gevent worker must patch the standard library before our modules are imported."""
    command = [
        *(sys.executable, "-m", "gunicorn", "app.live.server:create_live_app()"),
        *("--worker-class", "gevent", "--workers", "1", "--worker-connections", str(MAX_LIVE_CONNECTIONS)),
        *("--bind", f"{settings.host}:{settings.live_port}", "--graceful-timeout", "4", "--keep-alive", "75"),
        *("--log-level", "warning", "--no-control-socket", "--config", "python:app.live.gunicorn_config"),
    ]
    os.execv(sys.executable, command)


def _plain_logging() -> dict[str, Any]:
    """Log granian's own lines through our handler."""
    return {"version": 1, "disable_existing_loggers": False, "loggers": {"_granian": {"propagate": True}}}
