"""Which PostgreSQL server has the truth, and on which timeline: it belongs to what makes boards in Redis trusted.

A standby that is promoted begins a new timeline, and may lack the last commits of the server before. Redis then has
numbers, versions and whole boards that PostgreSQL does not know. So each tenant's projection, and the global boards,
remember the server on which they were last written. On another one every board is rebuilt under a new version, and
what Redis has besides is deleted.
"""

from sqlalchemy import text

from analytics.boards.names import ALL_TENANTS
from tenants import across
from tenants.across import OF_ONE
from tenants.db import Query, Tx, platform_tx

# After a restore: no server.
RESTORED = "restored"


def current(tx: Tx) -> str | None:
    """This server and its timeline; None: it is a standby. (On Citus: of the coordinator, since no table is read.)"""
    server: str | None = tx.run(*CURRENT)[0].server
    return server


def is_other(before: str | None, now: str | None) -> bool:
    """Whether boards were written on another server. Not if that is unknown: then the present one is taken over."""
    return None not in {before, now} and before != now


def owners_elsewhere() -> list[str]:
    """The tenants whose boards were last written on another server, across tenants; all tenants, for global boards."""
    with platform_tx() as tx:
        server = current(tx)
        are_global = tx.run(_GLOBAL_ELSEWHERE, {"server": server})
    found = [row.id for row in across.read(_ELSEWHERE, {"server": server})]
    return [*([ALL_TENANTS] if are_global else []), *found]


def of_global_boards(tx: Tx) -> str | None:
    """The server on which the global boards were last written, all of them together."""
    server: str | None = tx.scalar(text("SELECT min(server) FROM global_boards"))
    return server


def set_of_global_boards(tx: Tx, server: str | None) -> None:
    tx.run(text("UPDATE global_boards SET server = :server WHERE server IS DISTINCT FROM :server"), {"server": server})


def forget(tx: Tx) -> None:
    """After a restore, as the owner: boards in Redis are of what the database was before."""
    for table in ("projections", "global_boards"):
        tx.execute(text(f"UPDATE {table} SET server = :server"), {"server": RESTORED})  # noqa: S608  two constants


# The timeline is in the name of the file that is written now; pg_control_checkpoint() has it only after a checkpoint.
CURRENT: Query = (
    text("""
        SELECT CASE WHEN NOT pg_is_in_recovery() THEN
            (SELECT system_identifier::text FROM pg_control_system())
            || '/' || left(pg_walfile_name(pg_current_wal_lsn()), 8)
        END AS server
    """),
    {},
)

_GLOBAL_ELSEWHERE = text("SELECT server FROM global_boards WHERE server <> :server LIMIT 1")
_ELSEWHERE = text(f"""
    SELECT t.id FROM projections p JOIN tenants t ON t.id = p.tenant_id
    WHERE t.deleted_at IS NULL AND p.server <> :server AND {OF_ONE} ORDER BY t.id
""")  # noqa: S608  our own names
