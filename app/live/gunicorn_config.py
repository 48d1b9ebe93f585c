"""Gunicorn's hooks for the live process. Read before gevent has patched: hooks import what they need when they run."""

import gc
import logging
import signal
import sys
from http import HTTPStatus
from typing import Any

import structlog

from app.run.launcher import die_with_parent
from app.settings import Settings, socket_address
from tenants import hangups, logs
from tenants.quick_exit import run_and_exit


def when_ready(server: Any) -> None:
    server.handle_hup = hangups.say  # instead of starting its workers anew


def post_worker_init(worker: Any) -> None:
    """Start the hub."""
    from gunicorn import util

    from app.live.services import live_services_of

    gc.enable()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the master logs it
    util.write_error = write_problem  # instead of a page of HTML
    live_services_of(worker.wsgi).hub.start()
    settings = Settings.from_env()
    where = socket_address(settings.host, settings.live_port)
    structlog.get_logger().info("serves the sockets", action="live.started", data={"address": where})


def write_problem(sock: Any, status: int, _reason: str, _message: str) -> None:
    """Refuse what gunicorn cannot read, in the form of every other refusal."""
    from gunicorn import util

    from app.http.errors import DETAIL_OF_STATUS
    from app.server.answers import refusal

    detail = DETAIL_OF_STATUS.get(status, "This request cannot be read")
    head, body = refusal(HTTPStatus(status), detail)
    util.write_nonblock(sock, head + b"Connection: close\r\n\r\n" + body)


def post_fork(server: Any, _worker: Any) -> None:
    die_with_parent(server.pid)
    gc.disable()  # until our libraries are loaded: they leave hardly any garbage, and loading is a sixth quicker
    logs.configure(service="live", log_format=Settings.from_env().log_format)
    # Gunicorn's own handler would log addresses, and so tickets, without our mask.
    gunicorn = logging.getLogger("gunicorn.error")
    gunicorn.handlers.clear()
    gunicorn.propagate = True


def worker_exit(_server: Any, worker: Any) -> None:
    """The last hook of a worker, while its SystemExit is on its way: see `tenants.quick_exit`.

    One that failed to start is left to gunicorn, which stops then; and the master, which calls this hook too, never
    starts.
    """
    ended = sys.exc_info()[1]
    if worker.booted:
        run_and_exit(lambda: sys.exit(getattr(ended, "code", 1) if ended is not None else 0))
