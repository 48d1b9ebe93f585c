"""Distributes the tables over the nodes of a Citus, by tenant: `plaudit distribute`, and `plaudit migrate` afterwards.

`tenants` is distributed by its id and every table with a `tenant_id` beside it, so that all rows of a tenant are on one
node and every statement of a tenant is sent there as it is. What belongs to no tenant stays on the coordinator, and so
does the feed of credential changes, which every process reads ten times a second: it must not depend on any worker.

Each table is a transaction of its own, so a run that was interrupted is simply repeated. At its end the other sessions
are ended: a setting of the database is that of new ones only, and without it they would not see a tenant.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import structlog
from sqlalchemy import Connection, Engine, text

from migrations.roles import ROLES
from tenants.db import SERVICE_ROLE
from tenants.engines import disconnect_others
from tenants.errors import Conflict

log = structlog.get_logger()

# The same in every release: one process migrates or distributes at a time.
ADVISORY_LOCK = 7_526_103_841
# With rows of tenants, and not distributed.
LOCAL = frozenset({"credential_changes"})


class CannotDistribute(Conflict):
    """The cluster itself is not ready; its operator has to do something."""


def is_distributed(connection: Connection) -> bool:
    """Whether the tenants are distributed, so that new tables have to be too."""
    return has_citus(connection) and bool(connection.scalar(_IS_DISTRIBUTED))


def has_citus(connection: Connection) -> bool:
    return bool(connection.scalar(text("SELECT EXISTS (SELECT FROM pg_extension WHERE extname = 'citus')")))


def distribute(engine: Engine) -> Iterator[str]:
    """Do what `missing` lists, a step and a commit at a time; yields the steps that are done. Safe to run twice."""
    with _step(engine) as connection:
        require_cluster(connection)
        done = [*_prepare(connection)]
    yield from done
    while True:
        with _step(engine) as connection:
            table = next(iter(_undistributed(connection)), None)
            if table is None:
                break
            _distribute_table(connection, table)
        yield f"table {table}"
    with _step(engine) as connection:
        copied = _with_old_rows(connection)
        for table in copied:
            connection.execute(text("SELECT truncate_local_data_after_distributing_table(:table)"), {"table": table})
    yield from (f"old rows of {table}: removed" for table in copied)
    if done:
        with engine.connect() as connection:
            disconnect_others(connection)
        yield "other sessions: ended"


def distribute_all(engine: Engine) -> None:
    """The same for a command whose subject it is not: a migration with new tables, a restore. Logs its steps."""
    for step in distribute(engine):
        log.info("distributed", action="database.distributed", data={"step": step})


def missing(connection: Connection) -> list[str]:
    """What `distribute` would do, and what the operator has to. Changes nothing."""
    require_cluster(connection)
    return [
        *(f"role {role} may not log in on every node" for role in _roles_without_login(connection)),
        *(f"{SERVICE_ROLE} may not draw from {sequence}" for sequence in _sequences_without_grant(connection)),
        *(f"function {function} has generic plans" for function in _generic_functions(connection)),
        *([] if _forwards_settings(connection) else ["citus.propagate_set_commands is not 'local'"]),
        *(f"worker {node} forwards settings: citus.propagate_set_commands" for node in _forwarding(connection)),
        *(f"node {node} is not active" for node in connection.scalars(_INACTIVE)),
        *(f"table {table} is not distributed" for table in _undistributed(connection)),
        *(f"the coordinator has old rows of {table}" for table in _with_old_rows(connection)),
    ]


def require_cluster(connection: Connection) -> None:
    """Raise unless there are a Citus, nodes for the rows, and our schema."""
    if not has_citus(connection):
        raise CannotDistribute("This database has no Citus: CREATE EXTENSION citus on every node first, as a superuser")
    if not connection.scalar(_NODES_WITH_SHARDS):
        raise CannotDistribute("No node may have rows: add the workers with citus_add_node first, as a superuser")
    if connection.scalar(text("SELECT to_regclass('public.tenants') IS NULL")):
        raise CannotDistribute("This database has no schema of Plaudit: run plaudit migrate first")


@contextmanager
def _step(engine: Engine) -> Iterator[Connection]:
    """A transaction of one step. Whoever else distributes or migrates meanwhile waits, and then finds it done."""
    with engine.execution_options(isolation_level="READ COMMITTED").begin() as connection:
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": ADVISORY_LOCK})
        yield connection


def _prepare(connection: Connection) -> Iterator[str]:
    """What has to be true before the first statement is sent to a worker."""
    for role in _roles_without_login(connection):
        connection.execute(text(f"ALTER ROLE {role} LOGIN"))  # forwarded to all nodes
        yield f"role {role}: may log in"
    for sequence in _sequences_without_grant(connection):
        connection.execute(text(f"GRANT USAGE ON SEQUENCE {sequence} TO {SERVICE_ROLE}"))
        yield f"sequence {sequence}: {SERVICE_ROLE} may draw"
    for function in _generic_functions(connection):
        connection.execute(text(f"ALTER FUNCTION {function} RESET plan_cache_mode"))
        yield f"function {function}: plans for each tenant"
    if not _forwards_settings(connection):
        database = connection.dialect.identifier_preparer.quote(
            str(connection.scalar(text("SELECT current_database()")))
        )
        # On the coordinator alone: a worker would forward what it receives, a whole message at a time.
        connection.execute(text("SET LOCAL citus.enable_ddl_propagation = off"))
        connection.execute(text(f"ALTER DATABASE {database} SET citus.propagate_set_commands = 'local'"))
        connection.execute(text("SET LOCAL citus.enable_ddl_propagation = on"))
        yield "citus.propagate_set_commands: 'local'"


def _distribute_table(connection: Connection, table: str) -> None:
    if table == "tenants":
        connection.execute(text("SELECT create_distributed_table('tenants', 'id', colocate_with => 'none')"))
    else:
        distributed = text("SELECT create_distributed_table(:table, 'tenant_id', colocate_with => 'tenants')")
        connection.execute(distributed, {"table": table})


def _undistributed(connection: Connection) -> Sequence[str]:
    """The tables that are to be distributed; each comes after those that it refers to, and all after the tenants."""
    rows = connection.execute(_TABLES, {"local": list(LOCAL)}).all()
    names = {row.name for row in rows}
    references = {row.name: {"tenants", *row.referred} & names - {row.name} for row in rows}
    ordered: list[str] = []
    while references:
        ready = sorted(name for name, referred in references.items() if not referred - {*ordered})
        if not ready:
            raise CannotDistribute(f"These tables refer to each other in a circle: {', '.join(sorted(references))}")
        ordered += ready
        for name in ready:
            del references[name]
    return ordered


def _with_old_rows(connection: Connection) -> Sequence[str]:
    """Distributing a table copies its rows, and leaves the old ones where nobody can read or erase them."""
    return connection.scalars(_OLD_ROWS).all()


def _roles_without_login(connection: Connection) -> list[str]:
    """A statement on a tenant's rows connects to its worker as the role that runs it."""
    known = connection.execute(_MAY_LOG_IN, {"roles": list(ROLES)}).all()
    return sorted({role for role in ROLES for node in known if not node.success or role not in node.result.split()})


def _generic_functions(connection: Connection) -> Sequence[str]:
    """Functions whose plans are made without their tenant, and so without the node that has its rows."""
    return connection.scalars(_GENERIC).all()


def _sequences_without_grant(connection: Connection) -> Sequence[str]:
    """On a distributed table whoever inserts a row draws its number."""
    return connection.scalars(_WITHOUT_GRANT, {"role": SERVICE_ROLE}).all()


def _forwards_settings(connection: Connection) -> bool:
    return bool(connection.scalar(_FORWARDS))


def _forwarding(connection: Connection) -> Sequence[str]:
    """The workers that would forward what they receive, a whole message at a time."""
    return connection.scalars(_FORWARDING).all()


_IS_DISTRIBUTED = text(
    "SELECT EXISTS (SELECT FROM pg_dist_partition WHERE logicalrelid = to_regclass('public.tenants'))"
)
_MAY_LOG_IN = text("""
    SELECT success, result FROM run_command_on_all_nodes(format(
        'SELECT string_agg(rolname, '' '') FROM pg_roles WHERE rolcanlogin AND rolname = ANY(%L::text[])',
        CAST(:roles AS text[])))
""")
_WITHOUT_GRANT = text("""
    SELECT s.seqrelid::regclass::text FROM pg_sequence s JOIN pg_class c ON c.oid = s.seqrelid
    WHERE c.relnamespace = 'public'::regnamespace AND NOT has_sequence_privilege(:role, s.seqrelid, 'USAGE') ORDER BY 1
""")
_FORWARDING = text("""
    SELECT nodename || ':' || nodeport FROM run_command_on_workers('SHOW citus.propagate_set_commands')
    WHERE success AND result = 'local' ORDER BY 1
""")
_INACTIVE = text("SELECT nodename || ':' || nodeport FROM pg_dist_node WHERE NOT isactive ORDER BY 1")
_NODES_WITH_SHARDS = text("SELECT EXISTS (SELECT FROM pg_dist_node WHERE isactive AND shouldhaveshards)")
_TABLES = text("""
    SELECT c.relname AS name, ARRAY(
        SELECT f.confrelid::regclass::text FROM pg_constraint f
        WHERE f.conrelid = c.oid AND f.contype = 'f') AS referred
    FROM pg_class c
    WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
      AND c.relname <> ALL(:local)
      AND (c.relname = 'tenants' OR EXISTS (
          SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attname = 'tenant_id' AND NOT a.attisdropped))
      AND NOT EXISTS (SELECT FROM pg_dist_partition d WHERE d.logicalrelid = c.oid)
""")
_OLD_ROWS = text("""
    SELECT c.oid::regclass::text FROM pg_dist_partition d JOIN pg_class c ON c.oid = d.logicalrelid
    WHERE c.relnamespace = 'public'::regnamespace AND c.relkind = 'r' AND pg_relation_size(c.oid) > 0 ORDER BY 1
""")
_GENERIC = text("""
    SELECT oid::regproc::text FROM pg_proc
    WHERE pronamespace = 'public'::regnamespace AND 'plan_cache_mode=force_generic_plan' = ANY(proconfig) ORDER BY 1
""")
_FORWARDS = text("""
    SELECT EXISTS (SELECT FROM pg_db_role_setting s JOIN pg_database d ON d.oid = s.setdatabase
                   WHERE d.datname = current_database() AND s.setrole = 0
                     AND 'citus.propagate_set_commands=local' = ANY(s.setconfig))
""")
