"""A connection for an event loop: a transaction in one or two round trips, while the loop goes on."""

import asyncio
import time
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from tenants import loop_connection, waiting
from tenants.db import owner_tx
from tenants.loop_connection import LoopConnection
from tests.loops import run
from tests.service import eventually


def pid_of(rows: list[Any]) -> int:
    return int(rows[0].pid)


PID = "SELECT pg_backend_pid() AS pid"


def terminate(pid: int) -> None:
    with owner_tx() as tx:
        assert tx.scalar(text("SELECT pg_terminate_backend(CAST(:pid AS int), 5000)"), {"pid": pid})


@pytest.mark.parametrize("attempt", range(5))
def test_a_connection_that_is_lost_between_two_trips_is_an_error_and_replaced(tenant: str, attempt: int) -> None:
    """libpq closes its socket by itself then: there is nothing left to wait for."""

    async def test() -> None:
        connection = LoopConnection(asyncio.get_running_loop())
        async with connection.transaction(shared=True) as tx:
            (rows,) = await tx.run([(tenant, PID, ())])
            await asyncio.get_running_loop().run_in_executor(None, terminate, pid_of(rows))
            await asyncio.sleep(0.02 * attempt)
            with pytest.raises(DBAPIError) as lost:
                await tx.commit([(tenant, PID, ())] * 50)
        assert lost.value.connection_invalidated
        async with connection.transaction(shared=True) as tx:
            assert pid_of((await tx.commit([(tenant, PID, ())]))[0])

    run(test())


def test_a_server_that_does_not_answer_is_given_up_and_the_outcome_unknown(
    tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_connection, "TRIP_WITHIN_S", 0.2)

    async def test() -> None:
        connection = LoopConnection(asyncio.get_running_loop())
        before = pid_of(await connection.run_in_one_trip([(tenant, PID, ())], shared=False))
        with pytest.raises(DBAPIError, match="no answer within") as lost:
            await connection.run_in_one_trip([(tenant, "SELECT pg_sleep(60)", ())], shared=False)
        assert lost.value.connection_invalidated
        assert pid_of(await connection.run_in_one_trip([(tenant, PID, ())], shared=False)) != before
        gone.append(before)

    gone: list[int] = []
    run(test())
    eventually(lambda: not is_open(*gone))  # it was cancelled there


def is_open(pid: int) -> bool:
    with owner_tx() as tx:
        return bool(tx.scalar(text("SELECT count(*) FROM pg_stat_activity WHERE pid = :pid"), {"pid": pid}))


def test_a_connection_to_a_read_only_server_is_replaced(tenant: str) -> None:
    async def test() -> None:
        connection = LoopConnection(asyncio.get_running_loop())
        before = pid_of(await connection.run_in_one_trip([(tenant, PID, ())], shared=True))
        async with connection.transaction(shared=True) as tx:
            await tx.run([(tenant, "SET TRANSACTION READ ONLY", ())])
            with pytest.raises(DBAPIError) as refused:
                await tx.commit([(tenant, "UPDATE tenants SET id = id WHERE id = %s", (tenant,))])
        assert refused.value.connection_invalidated
        assert pid_of(await connection.run_in_one_trip([(tenant, PID, ())], shared=True)) != before

    run(test())


def test_the_loop_goes_on_while_the_server_works(tenant: str) -> None:
    async def test() -> None:
        connection = LoopConnection(asyncio.get_running_loop())
        await connection.run_in_one_trip([(tenant, "SELECT 1", ())], shared=False)
        waiting.forbid_in_this_thread()
        try:
            sleeping = asyncio.ensure_future(
                connection.run_in_one_trip([(tenant, "SELECT 'done' AS said FROM pg_sleep(0.2)", ())], shared=False)
            )
            turns, began = 0, time.monotonic()
            while not sleeping.done():
                turns += 1
                await asyncio.sleep(0.005)
            assert (await sleeping)[0].said == "done"
            assert turns > (time.monotonic() - began) / 0.05
        finally:
            waiting.allow_in_this_thread()

    run(test())


def test_what_does_not_fit_into_the_socket_at_once_is_sent_all_the_same(tenant: str) -> None:
    async def test() -> None:
        connection = LoopConnection(asyncio.get_running_loop())
        long = "x" * 20_000_000
        (row,) = await connection.run_in_one_trip([(tenant, "SELECT %s::text AS echo", (long,))], shared=False)
        assert row.echo == long

    run(test())


def test_after_an_error_of_the_server_the_connection_is_used_again(tenant: str) -> None:
    async def test() -> None:
        connection = LoopConnection(asyncio.get_running_loop())
        pid = [(tenant, "SELECT pg_backend_pid() AS pid", ())]
        first = await connection.run_in_one_trip(pid, shared=True)
        for statement, value in (("SELECT 1 / %s", 0), ("SELECT %s::text", "a\0b")):
            with pytest.raises(DBAPIError) as refused:
                await connection.run_in_one_trip([(tenant, statement, (value,))], shared=True)
            assert not refused.value.connection_invalidated
        assert await connection.run_in_one_trip(pid, shared=True) == first

    run(test())
