"""`python -m workers worker` or `python -m workers cron`: what `plaudit worker` and `plaudit cron` execute."""

import sys

import structlog

from app.settings import Settings
from tenants import hangups, logs
from tenants.quick_exit import run_and_exit
from tenants.redis_addresses import shown
from workers import database, metrics_server, run

PROCESSES = {"worker": run.work, "cron": run.tick}


def main() -> None:
    name = sys.argv[1]
    settings = Settings.from_env()
    logs.configure(service=name, log_format=settings.log_format)
    hangups.ignore()
    database.require_owner(settings)
    run.connect(settings)
    run.require_redis(settings)
    metrics_server.start(settings)  # which also says that the process is alive while it waits
    database.wait_for(settings)
    queue = shown(run.queue_url(settings))
    structlog.get_logger().info("started", action=f"{name}.started", data={"queue": queue})
    PROCESSES[name](settings)


if __name__ == "__main__":
    run_and_exit(main)
