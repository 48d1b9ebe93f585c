"""The floors: raw SQL and raw Redis are counted, and pgbench gets no password on its command line."""

import pytest

from analytics.boards import projection
from analytics.boards.names import Board
from analytics.metrics import VIEWS
from analytics.windows import Window
from app.run.data_folder import Addresses
from loadtests.floors import BATCH, parse_pgbench, raw_redis, raw_sql
from tenants.db import utcnow

OUTPUT = """pgbench (18.0)
number of transactions actually processed: 3000
number of failed transactions: 0 (0.000%)
latency average = 7.982 ms
initial connection time = 4.318 ms
tps = 501.123456 (without initial connection time)
"""


def test_transactions_are_counted_as_events() -> None:
    sample = parse_pgbench(OUTPUT)
    assert sample.per_second == pytest.approx(501.123456 * BATCH)
    assert sample.p50_ms == 7.982
    with pytest.raises(RuntimeError, match="no such table"):
        parse_pgbench("", "ERROR: no such table")


def test_raw_sql_runs_a_script(addresses: Addresses) -> None:
    if "@127.0.0.1:" not in addresses.database_url:
        pytest.skip("only local servers have pgbench")
    assert raw_sql(addresses.database_url, "SELECT 1;", seconds=1).per_second > 100


def test_raw_redis_reads_the_top_of_a_board(tenant: str, addresses: Addresses) -> None:
    if "@127.0.0.1:" not in addresses.redis_url:
        pytest.skip("only a local server has a password and the database 0")
    projection.project_all(tenant, now=utcnow)
    board = Board(tenant, "tenant", Window.WEEK, VIEWS)
    assert raw_redis(addresses.redis_url, board.key, seconds=0.2).per_second > 100
