"""Several statements in one round trip, each a message of its own: libpq's pipeline mode.

PostgreSQL would also take them as one message, but Citus sends a message to its workers as a whole, so a message has
one statement only. They are sent without psycopg's cursors, which cost more than most of these statements do, and
without preparing them on the server, so PgBouncer in transaction mode works. Waiting is psycopg's, so it works under
threads and under gevent.

Values are bound as text; the server derives the type of a string or an array from the statement, as for a literal.
"""

import os
import re
import select
import socket
import time
from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from contextvars import ContextVar
from datetime import date, datetime
from functools import lru_cache
from math import inf
from threading import BoundedSemaphore, Thread
from typing import Any, NamedTuple, Self, TypeVar
from uuid import UUID

import psycopg
from psycopg.abc import PQGen, PQGenConn
from psycopg.adapt import Transformer
from psycopg.errors import _WaitTimeout, error_from_result
from psycopg.generators import fetch_many, send
from psycopg.pq import ConnStatus, ExecStatus, TransactionStatus
from psycopg.pq.abc import PGconn, PGresult
from psycopg.waiting import wait_conn
from sqlalchemy import PoolProxiedConnection
from sqlalchemy.exc import DBAPIError

_CONNECTED = ConnStatus.OK
_FAILED = ExecStatus.FATAL_ERROR
_IDLE = TransactionStatus.IDLE
# PostgreSQL's code for a write on a standby, or where transactions are read-only.
READ_ONLY = "25006"
MAX_KEPT_STATEMENTS = 256
# `:name`, and not `::type`.
_NAME = re.compile(r"(?<![:\w]):([a-z_]\w*)")

# How often a wait looks whether it was interrupted, as in psycopg.
WAIT_INTERVAL_S = 0.1
# How long the server is asked to cancel what it has not answered, and for how many connections at once.
CANCEL_WITHIN_S = 2.0
_cancels = BoundedSemaphore(64)


Answer = TypeVar("Answer")
# It is called again and again while a connection is opened.
_look: ContextVar[Callable[[], None]] = ContextVar("plaudit_look", default=lambda: None)


class Driver(psycopg.Connection[Any]):
    """A connection, which can be given up while the server still works for it."""

    _is_given_up = False
    # Identifies its socket.
    inode = 0
    answered_at = -inf
    # How long an answer is waited for where nobody says so; None: for ever.
    answer_within_s: float | None = None

    @property
    def closed(self) -> bool:
        return self._is_given_up or super().closed

    @classmethod
    def connect_while(cls, look: Callable[[], None], **options: Any) -> Self:
        """Connect. `look` is called ten times a second meanwhile, and may raise an error of psycopg's."""
        token = _look.set(look)
        try:
            driver = cls.connect(**options)
        finally:
            _look.reset(token)
        driver.inode = os.fstat(driver.fileno()).st_ino
        return driver

    @classmethod
    def _connect_gen(cls, conninfo: str = "") -> PQGenConn[Self]:
        with closing(super()._connect_gen(conninfo)) as waits:
            look, wanted = _look.get(), next(waits)
            try:
                while True:
                    ready = yield wanted
                    look()
                    wanted = waits.send(ready)
            except StopIteration as end:
                driver: Self = end.value
                return driver

    def interrupt(self) -> None:
        """Have whoever waits for an answer find that the connection is lost. Another thread may call this.

        Another socket may have the number of this one, which that thread has closed: so ask which one it is.
        """
        with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(self.fileno())) as own:
            if os.fstat(own.fileno()).st_ino == self.inode:
                own.shutdown(socket.SHUT_RDWR)

    def wait(self, gen: PQGen[Answer], interval: float = WAIT_INTERVAL_S, timeout: float | None = None) -> Answer:
        """As psycopg's, for everything that is sent. Raises `NoAnswer`."""
        within_s = self.answer_within_s if timeout is None else timeout
        try:
            answer = super().wait(gen, interval, within_s)
        except _WaitTimeout:
            self.give_up()
            raise NoAnswer(f"no answer within {within_s:g} s") from None
        self.answered_at = time.monotonic()
        return answer

    def give_up(self) -> None:
        """Cancel what the server is doing, and close: in a thread, since both may wait. For the caller it is closed.

        A server that waits for a standby does not notice that its client is gone: without this, connections that
        nobody has any more would accumulate there. First cancelled and then closed, since a pooler forgets whose
        statement it was.
        """
        self._is_given_up = True
        if not _cancels.acquire(blocking=False):
            self.pgconn.finish()
            return
        Thread(target=self._cancel, name="cancel", daemon=True).start()

    def _cancel(self) -> None:
        try:
            wait_conn(self._cancel_gen(), interval=CANCEL_WITHIN_S, timeout=CANCEL_WITHIN_S)
        except (psycopg.Error, _WaitTimeout):
            pass  # then `statement_timeout` ends the statement, if anything does
        finally:
            self.pgconn.finish()
            _cancels.release()


class NoAnswer(psycopg.OperationalError):
    """The server, or a pooler before it, did not answer in time. The connection is given up."""


class Statement(NamedTuple):
    """A statement as it is sent."""

    sql: bytes
    values: Sequence[bytes | None] | None = None
    types: Sequence[int] | None = None


BEGIN, COMMIT, ROLLBACK = Statement(b"BEGIN"), Statement(b"COMMIT"), Statement(b"ROLLBACK")


def bound(sql: str, values: Sequence[object]) -> Statement:
    """A statement with a value for each `%s`. Raises `psycopg.DataError` for what PostgreSQL cannot store."""
    encoded = [_encode(value) for value in values]
    return Statement(_numbered(sql, len(encoded)), [value for value, _ in encoded], [kind for _, kind in encoded])


def named(sql: str, values: Mapping[str, object]) -> Statement:
    """The same with a value for each `:name`."""
    numbered, names = _numbered_names(sql)
    encoded = [_encode(values[name]) for name in names]
    return Statement(numbered, [value for value, _ in encoded], [kind for _, kind in encoded])


def run(driver: Driver, statements: Sequence[Statement], *, within_s: float | None = None) -> list[PGresult]:
    """Send these, and wait for all answers: one for each. Raises the first error, or `NoAnswer`.

    After an error of the server the connection is usable, and a transaction that began here is rolled back. After
    anything else that interrupts it, the connection is closed: it may be that the server has executed the statements.
    It is closed as well if the server is read-only: another connection may lead to one that is not.
    """
    with closing(exchange(driver, statements)) as waits:
        return driver.wait(waits, timeout=within_s)


def exchange(driver: Driver, statements: Sequence[Statement]) -> PQGen[list[PGresult]]:
    """The same for a caller that waits in its own way: yields what to wait for, as psycopg's generators do."""
    pgconn = driver.pgconn
    try:
        pgconn.enter_pipeline_mode()
        for sql, values, types in statements:
            pgconn.send_query_params(sql, values, types)
        pgconn.pipeline_sync()
        answers = yield from _answers(pgconn, len(statements))
        if pgconn.status == _CONNECTED:
            pgconn.exit_pipeline_mode()
    except BaseException:
        driver.close()  # the next statement would take what is still to come for its own answer
        raise
    for answer in answers:
        if answer.status == _FAILED:
            error = error_from_result(answer)
            if error.sqlstate == READ_ONLY:
                driver.close()
            elif statements[0] is BEGIN and pgconn.status == _CONNECTED and pgconn.transaction_status != _IDLE:
                yield from exchange(driver, (ROLLBACK,))
            raise error
    return answers


def rows(driver: Driver, answer: PGresult) -> list[Any]:
    """The rows of an answer, by name."""
    loader = Transformer.from_context(driver)
    loader.set_pgresult(answer)
    names = tuple(answer.fname(column) for column in range(answer.nfields))
    return loader.load_rows(0, answer.ntuples, _row_type(names)._make) if names else []


def has_unread_input(connection: PoolProxiedConnection | Driver) -> bool:
    """Whether the server has sent something unasked: it does when it closes an idle connection."""
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return bool(poll.poll(0))


def as_dbapi_error(error: psycopg.Error, *, is_disconnect: bool) -> BaseException:
    """An error of the driver, as SQLAlchemy raises it."""
    return DBAPIError.instance(
        None, None, error, psycopg.Error, hide_parameters=True, connection_invalidated=is_disconnect
    )


def _answers(pgconn: PGconn, count: int) -> PQGen[list[PGresult]]:
    """The answer to each statement. Fewer if the server closed the connection: the last one then says why."""
    yield from send(pgconn)
    answers: list[PGresult] = []
    try:
        while len(answers) < count:
            answers += yield from fetch_many(pgconn)
        yield from fetch_many(pgconn)  # the end of the pipeline
    except psycopg.DatabaseError:
        if not any(answer.status == _FAILED for answer in answers):
            raise
    return answers


@lru_cache(MAX_KEPT_STATEMENTS)
def _numbered(sql: str, count: int) -> bytes:
    """A statement with $1, $2, … for each `%s`."""
    parts = sql.replace("%%", "%").split("%s") if count else [sql]
    if len(parts) != count + 1:
        raise psycopg.ProgrammingError(f"the statement has {len(parts) - 1} placeholders, and there are {count} values")
    return "".join(part + (f"${place}" if place <= count else "") for place, part in enumerate(parts, 1)).encode()


@lru_cache(MAX_KEPT_STATEMENTS)
def _numbered_names(sql: str) -> tuple[bytes, tuple[str, ...]]:
    """A statement with $1, $2, … for its names, and the names in this order."""
    places: dict[str, int] = {}
    numbered = _NAME.sub(lambda match: f"${places.setdefault(match[1], len(places) + 1)}", sql)
    return numbered.encode(), tuple(places)


@lru_cache(MAX_KEPT_STATEMENTS)
def _row_type(names: tuple[bytes | None, ...]) -> Any:
    return namedtuple("Row", [(name or b"").decode() for name in names], rename=True)  # noqa: PYI024  names of the answer


def _encode(value: object) -> tuple[bytes | None, int]:
    """A value as text, and its type."""
    encode, kind = _ENCODERS.get(type(value)) or _inherited(value)
    return encode(value), kind


def _inherited(value: object) -> tuple[Callable[[Any], bytes | None], int]:
    for base in type(value).__mro__:
        if base in _ENCODERS:
            return _ENCODERS[base]
    raise TypeError(f"a {type(value).__name__} is not sent in a pipeline")


def _as_bytes(value: str) -> bytes:
    """As libpq wants it, which would end the value at a NUL without a word."""
    if "\0" in value:
        raise psycopg.DataError("PostgreSQL text cannot contain NUL bytes")
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise psycopg.DataError("PostgreSQL text cannot contain surrogates") from None


def _as_array(values: list[object]) -> bytes:
    if values and all(type(value) is str for value in values):
        joined = '","'.join(values)  # type: ignore[arg-type]
        if "\\" not in joined and joined.count('"') == 2 * (len(values) - 1):  # nothing to escape
            return _as_bytes(f'{{"{joined}"}}')
    return _as_bytes(f"{{{','.join(map(_element, values))}}}")


def _element(value: object) -> str:
    match value:
        case None:
            return "NULL"
        case str():
            return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
        case datetime():
            return f'"{value.isoformat()}"'
        case UUID():
            return value.hex
        case int() if not isinstance(value, bool):
            return str(value)
        case bytes():
            return f'"\\\\x{value.hex()}"'
        case _:
            raise TypeError(f"a {type(value).__name__} is not sent in an array")


# For each type how a value is encoded, and PostgreSQL's number of the type; 0: it is derived from the statement.
_ENCODERS: dict[type, tuple[Callable[[Any], bytes | None], int]] = {
    str: (_as_bytes, 0),
    list: (_as_array, 0),
    type(None): (lambda _: None, 0),
    bool: (lambda value: b"t" if value else b"f", 16),
    int: (lambda value: b"%d" % value, 20),
    float: (lambda value: repr(value).encode(), 701),
    datetime: (lambda value: value.isoformat().encode(), 1184),
    date: (lambda value: value.isoformat().encode(), 1082),
    UUID: (lambda value: value.hex.encode(), 2950),
    bytes: (lambda value: b"\\x" + value.hex().encode(), 17),
}
