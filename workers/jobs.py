"""The jobs: a few lines each, JSON arguments, safe to run twice or at once."""

import contextlib
import os
import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from functools import partial

import structlog

from analytics import maintenance, redaction, user_changes, wake
from analytics.boards import projection, retiring, snapshots
from analytics.ingest import page_addresses
from analytics.locks import Busy
from analytics.quests import expiring, rewards
from app.settings import Settings
from tenants import across, purging, retention, signing, suspensions
from tenants.db import utcnow
from tenants.queue import enqueue
from tenants.redis import RedisUnavailable, queue
from workers.turns import MIN_TURN_S, Turn

# Without Redis, in the scheduler: its other jobs wait meanwhile, and the next sweep continues.
MAX_SWEEP_S = 5.0
MAX_PURGE_S = 300.0
MAX_JOB_WITHOUT_REDIS_S = 10.0
# Longer than the rest of a job waits for a worker; else the next scheduled run does it.
CONTINUE_WITHIN_S = 600

log = structlog.get_logger()


def project(tenant_id: str) -> None:
    """Bring one tenant's boards up to date."""
    if not wake.wait_out_pause(tenant_id):
        return
    for _ in range(2):
        began = time.perf_counter()
        try:
            done = projection.bring_up_to_date(
                tenant_id, now=utcnow, locked=partial(wake.job_started, tenant_id), is_over=Turn().is_over
            )
        except Busy:
            # And once more: the other worker may have finished just before it was asked.
            wake.ask_to_run_again(tenant_id)
        else:
            wake.job_finished(tenant_id, took_s=time.perf_counter() - began, rows=done.rows, more=done.more)
            return


def sweep() -> None:
    """Wake tenants whose boards are behind, in case a wake-up was lost. Without Redis, project them here in turns."""
    stale = projection.stale_tenants(now=utcnow())
    if queue().is_up():
        wake.wake(stale)
        return
    random.shuffle(stale)  # a tenant whose turn does not come in time is among the first of a later sweep
    waiting, turn = deque(stale), Turn(MAX_SWEEP_S)
    while waiting and not turn.is_over():
        tenant_id = waiting.popleft()
        with _isolated(tenant_id), contextlib.suppress(RedisUnavailable, Busy):
            done = projection.bring_up_to_date(tenant_id, now=utcnow, is_over=lambda: bool(waiting) or turn.is_over())
            if done.more:
                waiting.append(tenant_id)


def resume() -> None:
    """Do what a killed worker has left, sooner than the next sweep would. Each worker that starts asks for this."""
    wake.wake_again(projection.stale_tenants(now=utcnow()))


def refresh_snapshots(began_at: str = "", after: str = "", *unfinished: str) -> None:
    """Take a snapshot of every board that changed, and seal yesterday's. The arguments are of a run that continues."""
    now = utcnow()
    run = snapshots.Run(datetime.fromisoformat(began_at), after, unfinished) if began_at else None
    # Without Redis it runs in the scheduler, and nothing continues it before the next run.
    turn = Turn(at_least_s=MIN_TURN_S) if queue().is_up() else Turn(snapshots.MAX_RUN_S)
    rest = snapshots.refresh_all(now=now, run=run, is_over=turn.is_over).rest
    if rest is not None:
        _continue_later("workers.jobs.refresh_snapshots", rest.began_at.isoformat(), rest.after, *rest.unfinished)


def end_due_quests(after: str = "") -> None:
    """Expire quests past their time, and release claims that nobody worked on."""
    now = utcnow()

    def end(tenant_id: str, is_over: Callable[[], bool]) -> None:
        expired, released = expiring.end_due(tenant_id, now=now, is_over=is_over)
        if expired or released:
            data = {"expired": expired, "released": released}
            log.info("quests ended", action="quests.ended", tenantId=tenant_id, data=data)

    _for_each("workers.jobs.end_due_quests", expiring.tenants_with_due(now=now), after, end)


def end_suspensions(after: str = "") -> None:
    """Show users on boards again whose suspension has come to its end. (They may act from that moment on.)"""
    now = utcnow()

    def end(tenant_id: str, is_over: Callable[[], bool]) -> None:
        data = {"users": user_changes.end_suspensions(tenant_id, now=now, is_over=is_over)}
        log.info("suspensions ended", action="audit.suspensions.ended", tenantId=tenant_id, data=data)

    _for_each("workers.jobs.end_suspensions", suspensions.tenants_with_due(now=now), after, end)


def retry_rewards(after: str = "") -> None:
    """Pay the rewards of quests that could not be paid before and are due again."""
    now = utcnow()

    def retry(tenant_id: str, is_over: Callable[[], bool]) -> None:
        paid = rewards.retry_due(tenant_id, by=f"worker:{os.getpid()}", now=now, is_over=is_over)
        log.info("rewards retried", action="rewards.retried", tenantId=tenant_id, data={"paid": paid})

    _for_each("workers.jobs.retry_rewards", rewards.tenants_with_due(now=now), after, retry)


def purge_deleted_tenants() -> None:
    """Remove the rows of tenants that were deleted, in turns."""
    turn = Turn()
    for tenant_id in across.deleted_tenants():
        with _isolated(tenant_id), contextlib.suppress(Busy):
            if retiring.retire(tenant_id, now=utcnow(), is_over=turn.is_over).more:
                break
            purged = purging.purge(tenant_id, is_over=turn.is_over)
            if purged.is_gone:
                log.info("tenant purged", action="audit.tenant.purged", tenantId=tenant_id)
        if turn.was_ended:
            break
    if turn.was_ended:
        _continue_later("workers.jobs.purge_deleted_tenants")


@contextlib.contextmanager
def _isolated(tenant_id: str) -> Iterator[None]:
    """Log an error of one tenant, and let the job continue with the others."""
    try:
        yield
    except Exception:
        log.exception("a job failed for a tenant", action="job.failed", tenantId=tenant_id)


def purge_expired() -> None:
    """Remove sessions, reset tokens, revoked tokens and idempotent answers that have expired."""
    turn = _purging()
    purged = retention.purge_expired(now=utcnow(), is_over=turn.is_over)
    if any(purged.values()):
        log.info("expired rows purged", action="retention.purged", data=purged)
    if turn.was_ended:
        _continue_later("workers.jobs.purge_expired")


def redact_kept_answers() -> None:
    """Remove erased users from kept answers, where the request that erased them could not finish that."""
    for tenant_id, user_id in redaction.pending():
        with _isolated(tenant_id):
            redaction.redact(tenant_id, user_id, is_over=Turn().is_over)


def fill_page_addresses(after: str = "") -> None:
    """Fill in the addresses of pages that an older release wrote."""

    def fill(tenant_id: str, is_over: Callable[[], bool]) -> None:
        filled = page_addresses.fill(tenant_id, is_over=is_over)
        if filled:
            log.info("page addresses filled", action="pages.filled", tenantId=tenant_id, data={"pages": filled})

    _for_each("workers.jobs.fill_page_addresses", across.live_tenants(), after, fill)


def _for_each(job: str, tenant_ids: Iterable[str], after: str, work: Callable[[str, Callable[[], bool]], None]) -> None:
    """Do a job's work for each tenant after this one, in the order of ids, until the job's turn is over.

    It is continued with the tenant of which something is left, else with the next.
    """
    turn, done = Turn(at_least_s=MIN_TURN_S) if queue().is_up() else Turn(MAX_JOB_WITHOUT_REDIS_S), after
    waiting = deque(tenant_id for tenant_id in sorted(tenant_ids) if tenant_id > after)
    while waiting and not turn.was_ended:
        tenant_id = waiting.popleft()
        with _isolated(tenant_id):
            work(tenant_id, turn.is_over)
        if not turn.was_ended:
            done = tenant_id
        if waiting:
            turn.is_over()
    if turn.was_ended:
        _continue_later(job, done)


def keep_partitions() -> None:
    """Create the audit's partitions of the next months, and drop those that no tenant keeps any longer."""
    maintenance.keep_months(now=utcnow())


def purge_history(after: str = "") -> None:
    """Remove hourly buckets and audit rows that are older than the tenant's retention."""
    purged = maintenance.purge_history(now=utcnow(), is_over=_purging().is_over, after=after)
    if any(purged.rows.values()):
        log.info("old history purged", action="retention.purged", data=purged.rows)
    if purged.continue_after is not None:
        _continue_later("workers.jobs.purge_history", purged.continue_after)


def _purging() -> Turn:
    """The turn of a purge. Without Redis it runs in the scheduler, whose other jobs wait for it."""
    return Turn(MAX_PURGE_S if queue().is_up() else MAX_JOB_WITHOUT_REDIS_S)


def _continue_later(job: str, *args: str) -> None:
    """Enqueue the rest of a job behind those that wait. Without Redis the next scheduled run does it."""
    with contextlib.suppress(RedisUnavailable):
        enqueue(job, *args, ttl_s=CONTINUE_WITHIN_S)


def rotate_signing_key() -> None:
    """Publish a new signing key when the newest is a month old."""
    settings = Settings.from_env()
    if settings.secret_key is None:
        return
    signer = signing.Signer(issuer=settings.public_url, secret_key=settings.secret_key)
    kid = signer.rotate_if_due(now=utcnow())
    if kid is not None:
        log.info("signing key rotated", action="audit.signing_key.rotated", data={"kid": kid})
