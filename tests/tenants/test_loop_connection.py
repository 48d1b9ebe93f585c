"""A connection for an event loop: a transaction in one round trip, while the loop goes on."""

import asyncio
import time

import pytest
from sqlalchemy.exc import DBAPIError

from tenants import waiting
from tenants.loop_connection import LoopConnection


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

    asyncio.run(test())


def test_what_does_not_fit_into_the_socket_at_once_is_sent_all_the_same(tenant: str) -> None:
    async def test() -> None:
        connection = LoopConnection(asyncio.get_running_loop())
        long = "x" * 20_000_000
        (row,) = await connection.run_in_one_trip([(tenant, "SELECT %s::text AS echo", (long,))], shared=False)
        assert row.echo == long

    asyncio.run(test())


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

    asyncio.run(test())
