"""The worker process, and the cron process that enqueues scheduled jobs."""

import contextlib
import logging
import signal
import sys
import time
from collections.abc import Callable
from types import FrameType

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError
from rq import Queue, SimpleWorker
from rq.exceptions import StopRequested
from rq.job import Job
from rq.serializers import JSONSerializer

from app.settings import Settings
from tenants import db, error_reports, logs
from tenants import redis as tenants_redis
from tenants.queue import QUEUE, enqueue
from workers import schedule, turns
from workers.leader import Leadership

# RQ waits on Redis for this long at a time, so the client's own timeout must be longer.
WORKER_TTL_S = 30
WORKER_TIMEOUT_S = 45.0
RETRY_S = 0.5
# Later the sweep has done it.
RESUME_WITHIN_S = 10
# A rebuild sends much data at once, and no request waits for it.
BOARDS_TIMEOUT_S = 5.0


class Worker(SimpleWorker):
    """Runs jobs in its own process: forking for each job would cost more than most jobs."""

    max_connection_wait_time = 1.0

    def perform_job(self, job: Job, queue: Queue) -> bool:
        name = (job.description or "?").partition("(")[0]
        logs.begin(request_id=job.id, route=f"job {name}")
        return super().perform_job(job, queue)

    def request_stop(self, signum: int, frame: FrameType | None) -> None:
        """RQ reads its own state from Redis here; that must not keep us running if Redis is stopped too."""
        turns.request_stop()
        try:
            super().request_stop(signum, frame)  # type: ignore[no-untyped-call]
        except RedisError:
            self._stop_requested = True
            raise StopRequested from None


def work(settings: Settings) -> None:
    """Run jobs until a stop signal. Without Redis it waits until Redis is back."""
    _stop_on_signals()
    connection = tenants_redis.make_client(queue_url(settings), timeout_s=WORKER_TIMEOUT_S)
    queue = Queue(QUEUE, connection=connection, serializer=JSONSerializer)
    _quieten_rq()
    with contextlib.suppress(tenants_redis.RedisUnavailable):  # a worker before this one may have been killed
        enqueue("workers.jobs.resume", ttl_s=RESUME_WITHIN_S)
    while not turns.is_stop_requested():
        try:
            worker = Worker([queue], connection=connection, serializer=JSONSerializer, worker_ttl=WORKER_TTL_S)
            worker.work(logging_level="WARNING", with_scheduler=False)
            # RQ also returns if Redis fails while it records that a job is done: continue then.
            time.sleep(0 if turns.is_stop_requested() else RETRY_S)
        except StopRequested:
            return
        except (RedisError, OSError) as error:
            tenants_redis.queue().note_failure(error)
            time.sleep(RETRY_S)


def tick(_settings: Settings) -> None:
    """Enqueue scheduled jobs until a stop signal, whenever no other cron process does."""
    leadership = Leadership()
    with leadership.contend():
        schedule.run(should_stop=_stop_on_signals(), leads=leadership.is_held)


def connect(settings: Settings) -> None:
    db.configure(
        service_url=settings.service_database_url,
        owner_url=settings.database_url,
        pool_size=settings.job_connections,
    )
    error_reports.configure(settings.sentry_dsn)
    tenants_redis.configure(
        boards_url=settings.redis_url or queue_url(settings),
        queue_url=queue_url(settings),
        boards_timeout_s=BOARDS_TIMEOUT_S,
    )


def require_redis(settings: Settings) -> None:
    """End this process if Redis refuses an address: it would be of no use without jobs."""
    urls = {"REDIS_URL": settings.redis_url, "PLAUDIT_QUEUE_REDIS_URL": settings.queue_redis_url}
    if (problem := tenants_redis.refusal(**urls)) is not None:
        raise SystemExit(f"plaudit: {problem}")


def queue_url(settings: Settings) -> str:
    return settings.queue_redis_url or settings.redis_url or "redis://127.0.0.1:6379/0"


def _stop_on_signals() -> Callable[[], bool]:
    stopped: list[int] = []

    def stop(number: int, _frame: object) -> None:
        stopped.append(number)
        turns.request_stop()  # before RQ has its own handlers in place

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    return lambda: bool(stopped)


def _quieten_rq() -> None:
    for name in ("rq.worker", "rq.queue"):
        logging.getLogger(name).setLevel(logging.ERROR)
    logging.getLogger("rq.worker").addFilter(_without_outages)


def _without_outages(line: logging.LogRecord) -> bool:
    """RQ logs every attempt to reach Redis as an error. An outage is one line, which `tenants.redis` logs."""
    arguments = line.args if isinstance(line.args, tuple) else ()
    for error in (*arguments, sys.exc_info()[1]):
        if isinstance(error, RedisConnectionError | RedisTimeoutError):
            tenants_redis.queue().note_failure(error)
            return False
    return True
