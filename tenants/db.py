"""Opens database transactions; besides it only `tenants.group_tx` does, for the group commit.

There are three kinds, one for each database role:

- `tenant_tx(tenant_id)`: as `plaudit_service`, inside one tenant. Row-level security shows that tenant's rows and no
  others, and the session adds `tenant_id = …` to every ORM statement (on Citus that routes it to one node).
- `platform_tx()`: as `plaudit_platform`, for the few reads across tenants that a policy allows.
- `owner_tx()`: as the owner of the tables, for migrations, partitions, retention and tenant administration.

`tenant_tx` inside another of the same tenant is the same transaction; any other inside one is an error: no request and
no job uses two connections, so a pool of one cannot lock up. Announcements wait for the commit: `tx.after_commit(...)`.

Nothing here keeps session state, so it all works behind PgBouncer in transaction mode: role, tenant and timeouts are
set until the transaction ends when it opens, all in one round trip (`tenants.pipelines`). `SET LOCAL plaudit.tenant` is
a statement, not `set_config()`, because only the statement is forwarded to other nodes on Citus; its literal is checked
by a pattern.
"""

import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Any, ClassVar

import psycopg
import structlog
from psycopg.pq.abc import PGresult
from sqlalchemy import DateTime, Engine, ForeignKey, MetaData, Text, TextClause, event
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import DeclarativeBase, Mapped, ORMExecuteState, Session, mapped_column, with_loader_criteria

from tenants import pipelines
from tenants.engines import Breaker, make_engine
from tenants.errors import NotFound, Unavailable
from tenants.pipelines import BEGIN, COMMIT, ROLLBACK, Driver, NoAnswer, Statement
from tenants.shares import TenantShare, current_caller, share_of
from tenants.waiting import require_may_wait

log = structlog.get_logger()

SERVICE_ROLE = "plaudit_service"
PLATFORM_ROLE = "plaudit_platform"
TENANT_ID = re.compile(r"[a-z][a-z0-9-]{1,62}")

# Until a transaction is open, which waits for no lock. A pooler lets its clients wait for longer, while its server is
# down or all of its connections are in use.
OPEN_WITHIN_S = 3.0
# The same for a whole transaction in one round trip, whose statements may take as long as the server lets them.
TRIP_WITHIN_S = 5.0
STATEMENT_TIMEOUT_MS = 10_000
# For a statement inside a transaction: a little longer than the server lets it take. A server that is frozen, or gone
# behind a pooler that still answers, ends nothing.
STATEMENT_WITHIN_S = STATEMENT_TIMEOUT_MS / 1000 + 2.0
# For COMMIT, which no timeout of the server ends while it waits for a standby. The owner's may have much to write.
COMMIT_WITHIN_S = 5.0
OWNER_COMMIT_WITHIN_S = 60.0
# For reads in one round trip: a slow one is an error of its own, before the connection is given up for it.
TRIP_STATEMENT_TIMEOUT_MS = 4_000
LOCK_TIMEOUT_MS = 5_000
# In a transaction that several tenants share: one tenant's locked row must not block the others.
SHARED_LOCK_TIMEOUT_MS = 300
SHARED_STATEMENT_TIMEOUT_MS = 3_000
IDLE_IN_TRANSACTION_TIMEOUT_MS = 60_000
OWNER_OPENING = (Statement(f"SET LOCAL lock_timeout = {LOCK_TIMEOUT_MS}".encode()),)


class Base(DeclarativeBase):
    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map: ClassVar[dict[Any, Any]] = {str: Text, datetime: DateTime(timezone=True)}


class TenantOwned:
    """A table whose rows belong to tenants. Its primary key starts with `tenant_id`."""

    tenant_id: Mapped[str] = mapped_column(primary_key=True, sort_order=-1)


class DeletedWithTenant(TenantOwned):
    """A table whose rows the database deletes with their tenant."""

    tenant_id: Mapped[str] = mapped_column(
        ForeignKey("tenants.id", ondelete="CASCADE"), primary_key=True, sort_order=-1
    )


# A statement, and a value for each of its names.
Query = tuple[TextClause, Mapping[str, Any]]


class Tx(Session):
    """An open transaction. Writers take it as their first argument and never commit: the caller that opened it does."""

    tenant_id: str | None = None
    raw: Connection

    def __init__(self, connection: Connection, tenant_id: str | None, **options: Any) -> None:
        super().__init__(bind=connection, **options)
        self.raw = connection
        self.tenant_id = tenant_id
        self._after_commit: list[Callable[[], None]] = []

    def after_commit(self, call: Callable[[], None]) -> None:
        """Call this once the transaction is committed and its connection released; never if it is rolled back."""
        self._after_commit.append(call)

    def take_after_commit(self) -> list[Callable[[], None]]:
        """What `after_commit` registered, for a caller that runs it itself: the group commit."""
        calls, self._after_commit = self._after_commit, []
        return calls

    def run_after_commit(self) -> None:
        """Run what `after_commit` registered. Called by what opened the transaction, after the commit."""
        for call in self._after_commit:
            try:
                call()
            except Exception:  # the commit is done: the other calls and the answer must not fail
                log.exception("a call after a commit failed", action="commit.followed", tenantId=self.tenant_id)

    def run(self, statement: TextClause, parameters: Mapping[str, Any]) -> list[Any]:
        """The rows of a statement, without SQLAlchemy's execution, which costs more than most statements.

        For sets and busy paths, which name their tenant themselves.
        """
        return self.run_in_one_trip((statement, parameters))[0]

    def run_in_one_trip(self, *queries: Query) -> list[list[Any]]:
        """The rows of each of these statements, which are executed in this order."""
        return self._rows_of([(pipelines.named, text.text, parameters) for text, parameters in queries])

    def set_statement_timeout(self, timeout_ms: int) -> None:
        """How long a statement may take, until the transaction ends. 0: for ever."""
        driver: Driver = self.raw.connection.driver_connection  # type: ignore[assignment]
        run_together(self.raw, Statement(b"SET LOCAL statement_timeout = %d" % timeout_ms))
        driver.answer_within_s = timeout_ms / 1000 + 2.0 if timeout_ms else None

    def call(self, statement: str, values: Sequence[object]) -> list[Any]:
        """The rows of a statement with a value for each `%s`."""
        return self.call_in_one_trip((statement, values))[0]

    def call_in_one_trip(self, *calls: tuple[str, Sequence[object]]) -> list[list[Any]]:
        return self._rows_of([(pipelines.bound, statement, values) for statement, values in calls])

    def _rows_of(self, statements: Sequence[tuple[Callable[[str, Any], Statement], str, Any]]) -> list[list[Any]]:
        try:
            bound = [bind(sql, values) for bind, sql, values in statements]
        except psycopg.Error as error:  # a value that PostgreSQL cannot store
            raise pipelines.as_dbapi_error(error, is_disconnect=False) from None
        driver: Driver = self.raw.connection.driver_connection  # type: ignore[assignment]
        return [pipelines.rows(driver, answer) for answer in run_together(self.raw, *bound)]

    @property
    def tenant(self) -> str:
        """The tenant of this transaction."""
        if self.tenant_id is None:
            raise RuntimeError("this transaction has no tenant")
        return self.tenant_id


@dataclass(frozen=True)
class _Engines:
    service: Engine
    owner: Engine | None
    # How many of the service's connections a tenant and a caller may use at once, in processes that answer requests.
    share: TenantShare | None


_engines: _Engines | None = None
# The transaction that the current request or job is in.
_current: ContextVar[Tx | None] = ContextVar("plaudit_tx", default=None)


def configure(
    *, service_url: str | None, owner_url: str | None, pool_size: int = 10, answers_requests: bool = False
) -> None:
    """Set the database's addresses, once per process. Opens no connection yet.

    In a process that answers requests no tenant uses more than its share of the pool at once, and nobody waits while
    PostgreSQL is away.
    """
    global _engines  # noqa: PLW0603  one process has one database; a container object would only be passed around
    if service_url is None and owner_url is None:
        raise ValueError("a database address is needed")
    dispose()
    # We send BEGIN and COMMIT ourselves: BEGIN then shares a round trip with what follows it.
    owner = make_engine(owner_url, pool_size=2, isolation_level="AUTOCOMMIT") if owner_url else None
    breaker = Breaker() if answers_requests else None
    address = service_url or owner_url or ""
    service = make_engine(address, pool_size=pool_size, isolation_level="AUTOCOMMIT", breaker=breaker)
    share = TenantShare(share_of(pool_size), max_waiting=10_000) if answers_requests else None
    _engines = _Engines(service=service, owner=owner, share=share)


def dispose() -> None:
    """Close every connection, before a fork or at the end."""
    if _engines is not None:
        _engines.service.dispose()
        if _engines.owner is not None:
            _engines.owner.dispose()


@contextmanager
def tenant_tx(tenant_id: str, *, separate: bool = False) -> Iterator[Tx]:
    """One transaction that sees and changes this tenant's rows only. Commits at the end, rolls back on an error.

    Inside another one of the same tenant it joins that one, which commits at its own end. With `separate` it neither
    joins another nor is joined: for tests, which are two callers at once (`tests/rules` refuses it elsewhere).
    """
    if TENANT_ID.fullmatch(tenant_id) is None:
        raise NotFound
    outer = None if separate else current_tx()
    if outer is not None and outer.tenant_id == tenant_id:
        yield outer
        return
    require_may_wait()
    engines = _configured()
    with (
        engines.share.of(tenant_id, current_caller.get().name) if engines.share is not None else nullcontext(),
        _open(engines.service, (*set_role(SERVICE_ROLE), set_tenant(tenant_id)), separate=separate) as connection,
    ):
        tx = yield from _session(connection, tenant_id, separate=separate)
    tx.run_after_commit()


def current_tx() -> Tx | None:
    """The transaction that this request or job is in, if there is one."""
    return _current.get()


@contextmanager
def platform_tx() -> Iterator[Tx]:
    """One transaction across tenants, on the tables whose policies name the platform role."""
    with _open(_configured().service, set_role(PLATFORM_ROLE)) as connection:
        tx = yield from _session(connection, None, separate=False)
    tx.run_after_commit()


@contextmanager
def owner_tx() -> Iterator[Tx]:
    """One transaction as the owner: administration and maintenance, never a request, nor inside another one."""
    with _open(owner_engine(), OWNER_OPENING, is_owner=True) as connection:
        tx = yield from _session(connection, None, separate=False)
    tx.run_after_commit()


def owner_engine() -> Engine:
    owner = _configured().owner
    if owner is None:
        raise Unavailable("This needs the owner's login: set DATABASE_URL")
    return owner


def service_engine() -> Engine:
    """The service's pool: for `tenants.group_tx`, and for `tenants.platform_calls`, which has one of its own beside."""
    return _configured().service


@cache
def set_role(role: str, *, shared: bool = False, statement_timeout_ms: int | None = None) -> tuple[Statement, ...]:
    """The statements that set a role and its timeouts: short ones in a transaction that several tenants share.

    Not one SELECT of set_config() for all timeouts: that costs twice as much as these, it is a query, after which the
    isolation level cannot be set any more, and a lock is waited for where the rows are, maybe on another node.
    """
    settings = {
        "ROLE": role,
        "statement_timeout =": statement_timeout_ms
        or (SHARED_STATEMENT_TIMEOUT_MS if shared else STATEMENT_TIMEOUT_MS),
        "lock_timeout =": SHARED_LOCK_TIMEOUT_MS if shared else LOCK_TIMEOUT_MS,
        "idle_in_transaction_session_timeout =": IDLE_IN_TRANSACTION_TIMEOUT_MS,
    }
    return tuple(Statement(f"SET LOCAL {name} {value}".encode()) for name, value in settings.items())


def set_tenant(tenant_id: str) -> Statement:
    """The statement that sets the tenant. The id is checked first, so that quoting it is safe."""
    if TENANT_ID.fullmatch(tenant_id) is None:
        raise NotFound
    return Statement(f"SET LOCAL plaudit.tenant = '{tenant_id}'".encode())


def array(values: Iterable[object]) -> str:
    """An array as PostgreSQL writes it, for values that need no quotes: quicker than one parameter for each."""
    return f"{{{','.join(map(str, values))}}}"


def utcnow() -> datetime:
    return datetime.now(UTC)


def _configured() -> _Engines:
    if _engines is None:
        raise RuntimeError("tenants.db.configure() has not been called")
    return _engines


@contextmanager
def _open(
    engine: Engine, opening: Sequence[Statement], *, separate: bool = False, is_owner: bool = False
) -> Iterator[Connection]:
    """A transaction on a connection of the pool: opened in one round trip, committed at the end.

    The owner's statements take as long as they need.
    """
    if not separate:
        refuse_inside_another()
    connection = _begin(engine, opening)
    driver: Driver = connection.connection.driver_connection  # type: ignore[assignment]
    driver.answer_within_s = None if is_owner else STATEMENT_WITHIN_S
    try:
        yield connection
        run_together(connection, COMMIT, within_s=OWNER_COMMIT_WITHIN_S if is_owner else COMMIT_WITHIN_S)
    except BaseException:
        if not connection.invalidated:
            run_together(connection, ROLLBACK, within_s=COMMIT_WITHIN_S)
        raise
    finally:
        connection.close()


def refuse_inside_another() -> None:
    """A request or job that waited for a second connection could lock up the pool."""
    if current_tx() is not None:
        raise RuntimeError("A transaction is already open, and nobody uses two connections at once: see tenants/db.py")


def _begin(engine: Engine, opening: Sequence[Statement]) -> Connection:
    """A connection inside a transaction. The opening statements also check that the connection still works."""
    require_may_wait()
    connection = engine.connect()
    try:
        run_together(connection, BEGIN, *opening, within_s=OPEN_WITHIN_S)
    except DBAPIError as error:
        connection.close()
        if isinstance(error.orig, NoAnswer):
            engine.dispose()  # its other connections would wait as long
            raise
        if not error.connection_invalidated:
            raise
        # The server was restarted, so the pool's other connections are lost too: try once with a new one.
        connection = engine.connect()
        while pipelines.has_unread_input(connection.connection):
            connection.invalidate()
            connection.close()
            connection = engine.connect()
        run_together(connection, BEGIN, *opening, within_s=OPEN_WITHIN_S)
    connection.begin()  # so that SQLAlchemy takes the transaction for ours, and its sessions end nothing
    return connection


def run_together(connection: Connection, *statements: Statement, within_s: float | None = None) -> list[PGresult]:
    """Run statements on a connection, in one round trip; returns their answers."""
    driver: Driver = connection.connection.driver_connection  # type: ignore[assignment]
    try:
        return pipelines.run(driver, statements, within_s=within_s)
    except psycopg.Error as error:
        raise pipelines.as_dbapi_error(error, is_disconnect=driver.closed) from None
    finally:
        if driver.closed:
            connection.invalidate()


@contextmanager
def service_connection(opening: Sequence[Statement]) -> Iterator[Connection]:
    """A transaction on a connection of the service's pool: for `tenants.group_tx`."""
    with _open(_configured().service, opening) as connection:
        yield connection


def _session(connection: Connection, tenant_id: str | None, *, separate: bool) -> Generator[Tx, None, Tx]:
    outer = current_tx()
    with Tx(connection, tenant_id, expire_on_commit=False) as tx:
        token = _current.set(outer if separate else tx)
        try:
            yield tx
            tx.flush()
        finally:
            _current.reset(token)
        return tx


@event.listens_for(Tx, "do_orm_execute")
def _add_tenant_criteria(state: ORMExecuteState) -> None:
    tenant_id = getattr(state.session, "tenant_id", None)
    if tenant_id is not None and not state.is_insert and not state.is_column_load:
        state.statement = state.statement.options(
            with_loader_criteria(TenantOwned, lambda table: table.tenant_id == tenant_id, include_aliases=True)
        )
