"""Several statements in one round trip: all or none, with the values that were given; the connection stays usable."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from threading import BoundedSemaphore
from uuid import UUID

import psycopg
import pytest
from psycopg.pq import ConnStatus, TransactionStatus
from sqlalchemy.engine import make_url

from app.settings import Settings
from tenants import pipelines
from tenants.engines import make_engine
from tenants.pipelines import BEGIN, COMMIT, Driver, NoAnswer, Statement, bound
from tests.service import eventually

ROOT = Path(__file__).parents[2]


@pytest.fixture
def driver(settings: Settings) -> Iterator[Driver]:
    engine = make_engine(settings.database_url or "", pool_size=1, isolation_level="AUTOCOMMIT")
    pooled = engine.raw_connection()
    yield pooled.driver_connection  # type: ignore[misc]
    pooled.invalidate()
    engine.dispose()


def is_usable(driver: Driver) -> bool:
    is_idle = driver.info.transaction_status == TransactionStatus.IDLE
    return is_idle and driver.execute("SELECT 1").fetchone() == (1,)


def test_what_is_set_for_a_transaction_ends_with_it(driver: Driver) -> None:
    asked = bound("SELECT current_setting('plaudit.tenant', true) AS tenant", ())
    answers = pipelines.run(driver, [BEGIN, Statement(b"SET LOCAL plaudit.tenant = 'acme'"), asked, COMMIT])
    assert [row.tenant for row in pipelines.rows(driver, answers[2])] == ["acme"]
    (after,) = pipelines.rows(driver, *pipelines.run(driver, [asked]))
    assert not after.tenant
    assert is_usable(driver)
    prepared = bound("SELECT count(*) AS statements FROM pg_prepared_statements", ())
    assert pipelines.rows(driver, *pipelines.run(driver, [prepared])) == [(0,)]


TEXTS = ["a", "", "NULL", "it's", 'a "quoted" \\ word', "{a,b}", "50 %s of %% ü 🦆", " a ", "\n", None]


def test_values_arrive_as_they_were_given(driver: Driver) -> None:
    now, one = datetime(2026, 5, 4, 3, 2, 1, 654321, tzinfo=UTC), UUID(int=1)
    sql = """
        SELECT %s AS number, %s AS fraction, %s AS yes, %s AS no, %s AS time, %s AS id, %s::text AS nothing,
               %s::text[] AS texts, %s::timestamptz[] AS times, %s::uuid[] AS ids, %s::text[] AS empty,
               %s::bytea[] AS hashes, %s::int[] AS numbers, 7 %% 4 AS rest
    """
    empty: list[str] = []
    values = (
        7,
        0.5,
        True,
        False,
        now,
        one,
        None,
        TEXTS,
        [now, None],
        [None, one],
        empty,
        [b"\x00\xff", b"", None],
        "{1,NULL,-2}",
    )
    (row,) = pipelines.rows(driver, *pipelines.run(driver, [bound(sql, values)]))
    assert tuple(row) == (*values[:-1], [1, None, -2], 3)
    for one_text in TEXTS:
        asked = bound("SELECT %s::text AS same", [one_text])
        assert pipelines.rows(driver, *pipelines.run(driver, [asked])) == [(one_text,)]


@pytest.mark.parametrize("value", ["a\0b", ["a", "a\0b"], "\ud800", ["\ud800"]])
def test_text_that_postgresql_cannot_store_is_refused_before_anything_is_sent(value: object) -> None:
    with pytest.raises(psycopg.DataError):
        bound("SELECT %s", [value])


def test_each_placeholder_needs_a_value_of_a_known_type() -> None:
    for sql, values in (("SELECT %s", (1, 2)), ("SELECT %s, %s", (1,)), ("SELECT 1", (1,))):
        with pytest.raises(psycopg.ProgrammingError):
            bound(sql, values)
    for value in (object(), [object()]):
        with pytest.raises(TypeError):
            bound("SELECT %s", [value])


def test_an_error_undoes_the_whole_transaction_and_the_connection_stays_usable(driver: Driver) -> None:
    create = Statement(b"CREATE TABLE never (id int)")
    with pytest.raises(psycopg.errors.DivisionByZero) as raised:
        pipelines.run(driver, [BEGIN, create, bound("SELECT 1 / %s", [0]), COMMIT])
    assert raised.value.sqlstate == "22012"
    assert is_usable(driver)
    assert driver.execute("SELECT to_regclass('never')").fetchone() == (None,)


def test_an_error_in_the_callers_transaction_is_left_to_the_caller(driver: Driver) -> None:
    driver.execute("BEGIN")
    with pytest.raises(psycopg.errors.DivisionByZero):
        pipelines.run(driver, [bound("SELECT 1 / %s", [0])])
    assert driver.info.transaction_status == TransactionStatus.INERROR
    driver.execute("ROLLBACK")
    assert is_usable(driver)


def test_a_failed_commit_is_an_error(driver: Driver) -> None:
    driver.execute("CREATE TEMP TABLE once (id int UNIQUE DEFERRABLE INITIALLY DEFERRED)")
    with pytest.raises(psycopg.errors.UniqueViolation):
        pipelines.run(driver, [BEGIN, Statement(b"INSERT INTO once VALUES (1), (1)"), COMMIT])
    assert is_usable(driver)


def test_a_lost_connection_is_closed_and_says_why(driver: Driver) -> None:
    with pytest.raises(psycopg.OperationalError) as raised:
        pipelines.run(driver, [BEGIN, Statement(b"SELECT pg_terminate_backend(pg_backend_pid())"), COMMIT])
    assert driver.closed
    assert raised.value.sqlstate == "57P01"
    with pytest.raises(psycopg.OperationalError):
        pipelines.run(driver, [BEGIN, COMMIT])


def test_a_connection_is_closed_if_waiting_for_its_answers_is_interrupted(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(waits: Iterator[object], timeout: float | None) -> None:
        next(waits)  # everything is sent
        raise KeyboardInterrupt

    monkeypatch.setattr(driver, "wait", interrupt)
    with pytest.raises(KeyboardInterrupt):
        pipelines.run(driver, [BEGIN, COMMIT])
    assert driver.closed


def test_a_server_that_does_not_answer_in_time_is_given_up_and_the_connection_closed(driver: Driver) -> None:
    assert pipelines.run(driver, [Statement(b"SELECT 1")], within_s=60)
    with pytest.raises(NoAnswer):
        pipelines.run(driver, [BEGIN, Statement(b"SELECT pg_sleep(5)"), COMMIT], within_s=0.1)
    assert driver.closed


def test_what_was_given_up_is_cancelled_on_the_server(driver: Driver, settings: Settings) -> None:
    """A server that sleeps, or waits for a standby, does not notice that its client is gone."""
    with pytest.raises(NoAnswer):
        pipelines.run(driver, [BEGIN, Statement(b"SELECT pg_sleep(61)"), COMMIT], within_s=0.1)
    asleep = "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query = 'SELECT pg_sleep(61)'"
    with psycopg.connect(settings.database_url or "", autocommit=True) as other:
        eventually(lambda: other.execute(asleep).fetchone() == (0,), within_s=10)
    eventually(lambda: driver.pgconn.status == ConnStatus.BAD, within_s=10)


def test_only_so_many_connections_are_cancelled_at_once(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipelines, "_cancels", BoundedSemaphore(1))
    assert pipelines._cancels.acquire()
    driver.give_up()
    assert driver.pgconn.status == ConnStatus.BAD


def test_a_connection_to_a_read_only_server_is_closed_by_a_write(driver: Driver) -> None:
    statements = [BEGIN, Statement(b"SET TRANSACTION READ ONLY"), Statement(b"SELECT 1"), COMMIT]
    assert pipelines.run(driver, statements)
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        pipelines.run(driver, [*statements[:2], Statement(b"CREATE TABLE never ()"), COMMIT])
    assert driver.closed


def test_more_is_sent_and_answered_at_once_than_sockets_hold(driver: Driver) -> None:
    large = "x" * 5_000_000
    answers = pipelines.run(driver, [BEGIN, *[bound("SELECT %s::text AS large", [large])] * 4, COMMIT])
    assert [len(row.large) for answer in answers[1:-1] for row in pipelines.rows(driver, answer)] == [len(large)] * 4


COOPERATING = """
from gevent import monkey; monkey.patch_all()
import sys, gevent
from tenants import pipelines
from tenants.engines import make_engine

engine = make_engine(sys.argv[1], pool_size=1, isolation_level="AUTOCOMMIT")
sleep = pipelines.bound("SELECT pg_sleep(%s)", [0.5])
driver = engine.raw_connection().driver_connection
waiting = gevent.spawn(pipelines.run, driver, [pipelines.BEGIN, sleep, pipelines.COMMIT])
turns = 0
while not waiting.dead:
    gevent.sleep(0.01)
    turns += 1
print(len(waiting.get()), turns > 1)
"""


def test_others_run_under_gevent_while_one_waits(settings: Settings) -> None:
    command = [sys.executable, "-c", COOPERATING, settings.database_url or ""]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout == "3 True\n", done.stderr


def test_only_its_own_socket_is_interrupted(settings: Settings) -> None:
    """Another one may have got its number, since the thread that uses the connection has closed it."""
    address = make_url(settings.database_url or "").render_as_string(hide_password=False)
    driver = Driver.connect_while(lambda: None, conninfo=address)
    number, (one, other) = driver.fileno(), socket.socketpair()
    with one, other, socket.socket(fileno=os.dup(number)) as own:
        os.dup2(one.fileno(), number)
        driver.interrupt()
        other.sendall(b"x")
        assert one.recv(1) == b"x"
        os.dup2(own.fileno(), number)
        driver.interrupt()
        with pytest.raises(psycopg.OperationalError):
            driver.execute("SELECT 1")
    driver.close()
    driver.interrupt()
