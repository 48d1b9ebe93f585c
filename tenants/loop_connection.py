"""A connection for an event loop: a transaction in one or two round trips, while the loop goes on with everything else.

It is opened by a thread, taken out of the pool, and kept. One transaction at a time: a group commit of the loop is its
only user. A round trip that is not answered in time closes it: whether it was executed is then unknown.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import psycopg
from psycopg.abc import PQGen
from psycopg.pq import ConnStatus, TransactionStatus
from psycopg.pq.abc import PGresult
from psycopg.waiting import Ready, Wait

from tenants import pipelines
from tenants.db import SERVICE_ROLE, TRIP_WITHIN_S, service_engine, set_role, set_tenant
from tenants.group_tx import Calls, first_rows, statements_of, take_out
from tenants.pipelines import BEGIN, COMMIT, ROLLBACK, Driver, NoAnswer, Statement

LOOK_EVERY_S = 0.1
MAX_STEPS_WHEN_LOST = 100


class LoopConnection:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._driver: Driver | None = None

    async def run_in_one_trip(self, calls: Calls, *, shared: bool) -> list[Any]:
        """As `group_tx.run_in_one_trip`."""
        driver = await self._open_driver()
        try:
            statements = statements_of(calls, shared=shared)
            answers = await _Exchange(self._loop, driver, pipelines.exchange(driver, statements)).done
            return first_rows(driver, answers)
        except psycopg.Error as error:
            raise pipelines.as_dbapi_error(error, is_disconnect=driver.closed) from None

    @asynccontextmanager
    async def transaction(self, *, shared: bool) -> AsyncIterator["LoopTransaction"]:
        """A transaction of several round trips. It is rolled back unless `commit` was awaited."""
        tx = LoopTransaction(self._loop, await self._open_driver(), set_role(SERVICE_ROLE, shared=shared))
        try:
            yield tx
        finally:
            await tx.end()

    async def _open_driver(self) -> Driver:
        if self._driver is not None and not self._driver.closed and pipelines.has_unread_input(self._driver):
            self._driver.close()
        if self._driver is None or self._driver.closed:
            self._driver = await self._loop.run_in_executor(None, take_out)
        return self._driver


class LoopTransaction:
    def __init__(self, loop: asyncio.AbstractEventLoop, driver: Driver, opening: Sequence[Statement]) -> None:
        self._loop = loop
        self._driver = driver
        self._opening = [BEGIN, *opening]

    async def run(self, calls: Calls) -> list[list[Any]]:
        """One statement for each tenant, in one round trip; returns the rows of each."""
        return await self._send(calls)

    async def commit(self, calls: Calls) -> list[list[Any]]:
        """The same, and commit in the same trip."""
        return await self._send(calls, COMMIT)

    async def _send(self, calls: Calls, *last: Statement) -> list[list[Any]]:
        opening, self._opening = self._opening, []
        statements = [*opening]
        try:
            for tenant_id, statement, parameters in calls:
                statements += (set_tenant(tenant_id), pipelines.bound(statement, parameters))
            waits = pipelines.exchange(self._driver, [*statements, *last])
            answers = await _Exchange(self._loop, self._driver, waits).done
        except psycopg.Error as error:
            raise pipelines.as_dbapi_error(error, is_disconnect=self._driver.closed) from None
        return [pipelines.rows(self._driver, answer) for answer in answers[len(opening) + 1 : len(statements) : 2]]

    async def end(self) -> None:
        """Roll back what was not committed."""
        if not self._driver.closed and self._driver.pgconn.transaction_status != TransactionStatus.IDLE:
            try:
                await _Exchange(self._loop, self._driver, pipelines.exchange(self._driver, (ROLLBACK,))).done
            except psycopg.Error:
                self._driver.close()


class _Exchange:
    """Waits for what one of psycopg's generators asks for, on the loop; `done` has its result."""

    def __init__(self, loop: asyncio.AbstractEventLoop, driver: Driver, waits: PQGen[list[PGresult]]) -> None:
        self._loop = loop
        self._driver = driver
        self._waits = waits
        self._socket = driver.pgconn.socket
        self._watched = 0
        self._gives_up_at = loop.time() + TRIP_WITHIN_S
        self._looking = loop.call_later(LOOK_EVERY_S, self._look)
        self.done: asyncio.Future[list[PGresult]] = loop.create_future()
        self._advance(None)

    def _advance(self, ready: Ready | None) -> None:
        try:
            wanted = next(self._waits) if ready is None else self._waits.send(ready)
            for _ in range(MAX_STEPS_WHEN_LOST):
                if self._driver.pgconn.status == ConnStatus.OK:
                    self._watch(wanted)
                    return
                # libpq has closed the socket: there is nothing to wait for, and the next step says why.
                wanted = self._waits.send(Ready.R)
            raise psycopg.OperationalError("the connection is lost")  # noqa: TRY301  as the driver would
        except StopIteration as end:
            self._driver.answered_at = time.monotonic()
            self._end()
            if not self.done.done():
                self.done.set_result(end.value)
        except Exception as error:  # noqa: BLE001  raised where the result is awaited
            self._end()
            if not self.done.done():
                self.done.set_exception(error)

    def _end(self) -> None:
        self._looking.cancel()
        self._watch(0)
        self._waits.close()

    def _look(self) -> None:
        """Whether the connection is lost, which the loop does not tell if it was reset; or it takes too long."""
        if self._loop.time() < self._gives_up_at:
            self._looking = self._loop.call_later(LOOK_EVERY_S, self._look)
            self._advance(Ready.R)
            return
        self._driver.give_up()
        self._end()
        service_engine().dispose()  # the pool's would wait as long
        if not self.done.done():
            self.done.set_exception(NoAnswer(f"no answer within {TRIP_WITHIN_S:g} s"))

    def _watch(self, wanted: int) -> None:
        """Call `_advance` whenever the socket is ready for this: as a rule, whenever something can be read."""
        changed, self._watched = wanted ^ self._watched, wanted
        if changed & Wait.R:
            if wanted & Wait.R:
                self._loop.add_reader(self._socket, self._advance, Ready.R)
            else:
                self._loop.remove_reader(self._socket)
        if changed & Wait.W:
            if wanted & Wait.W:
                self._loop.add_writer(self._socket, self._advance, Ready.W)
            else:
                self._loop.remove_writer(self._socket)
