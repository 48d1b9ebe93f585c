"""Wake-ups: at most one job pending for each tenant."""

import pytest

from analytics import wake
from tenants import redis as tenants_redis
from tests.analytics.conftest import Jobs
from tests.conftest import redis_unavailable
from tests.service import eventually


def test_a_second_wake_up_enqueues_nothing_until_the_job_has_started(tenant: str, jobs: Jobs) -> None:
    wake.wake([tenant])
    wake.wake([tenant, tenant])
    assert jobs() == [wake.JOB]
    wake.job_started(tenant)
    wake.wake([tenant])
    assert jobs() == [wake.JOB] * 2


def test_whoever_found_the_lock_taken_gets_another_run(tenant: str, jobs: Jobs) -> None:
    wake.job_finished(tenant, took_s=0, rows=1)
    assert jobs() == []
    wake.ask_to_run_again(tenant)
    for _ in range(2):
        wake.job_finished(tenant, took_s=0, rows=1)
        wake.job_started(tenant)
    assert jobs() == [wake.JOB], "once"


def test_a_job_is_followed_by_a_pause_half_as_long_as_it_took_up_to_a_bound(
    tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pause_ms(took_s: float, rows: int = 1) -> int:
        wake.job_finished(tenant, took_s=took_s, rows=rows)
        return int(tenants_redis.queue().redis.pttl(f"pause:{tenant}"))

    monkeypatch.setattr(wake, "MAX_PAUSE_S", 7200)
    assert 1_700_000 < pause_ms(took_s=3600) <= 1_800_000
    assert 7_100_000 < pause_ms(took_s=20_000) <= 7_200_000
    assert 3_600_000 < pause_ms(took_s=1000, rows=2 * wake.BUSY_ROWS_PER_S * 1000) <= 4_000_000, "longer if very busy"
    assert 0 < pause_ms(took_s=1000, rows=wake.BUSY_ROWS_PER_S * 500) <= 500_000


def test_the_next_job_waits_until_the_pause_is_over(tenant: str) -> None:
    wake.wait_out_pause(tenant)
    wake.job_finished(tenant, took_s=0.02, rows=1)
    wake.wait_out_pause(tenant)
    assert tenants_redis.queue().redis.pttl(f"pause:{tenant}") <= 1


def test_a_job_that_would_wait_lets_others_go_first(tenant: str, jobs: Jobs) -> None:
    assert wake.wait_out_pause(tenant)
    wake.job_finished(tenant, took_s=30, rows=1)
    wake.wake([tenant])
    assert not wake.wait_out_pause(tenant), "another job waits for a worker"
    assert jobs() == [wake.JOB] * 2


def test_the_waker_wakes_every_tenant_that_it_was_given(tenant: str, jobs: Jobs) -> None:
    waker = wake.Waker()
    waker([tenant])
    assert eventually(jobs) == [wake.JOB]


def test_without_redis_nothing_happens(tenant: str, jobs: Jobs) -> None:
    with redis_unavailable():
        wake.wake([tenant])
        wake.job_started(tenant)
        wake.job_finished(tenant, took_s=1, rows=1)
        wake.wait_out_pause(tenant)
        wake.ask_to_run_again(tenant)
    assert jobs() == []
