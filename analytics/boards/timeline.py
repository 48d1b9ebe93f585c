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
    """This server and its timeline, of a Citus the coordinator's. None: it is a standby, or does not say."""
    server: str | None = tx.run(*CURRENT)[0].server
    return server


def is_other(before: str | None, now: str | None) -> bool:
    """Whether boards were written on another server. Not if that is unknown: then the present one is taken over."""
    return before == RESTORED or (None not in {before, now} and before != now)


def owners_elsewhere() -> list[str]:
    """The tenants whose boards were last written on another server, across tenants; all tenants, for global boards.

    The global boards also if their server is unknown: nothing but a rebuild takes the present one over.
    """
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


CURRENT: Query = (text("SELECT current_server() AS server"), {})

_GLOBAL_ELSEWHERE = text(f"""
    SELECT server FROM global_boards
    WHERE server = '{RESTORED}' OR (:server::text IS NOT NULL AND server IS DISTINCT FROM :server) LIMIT 1
""")  # noqa: S608  a constant
_ELSEWHERE = text(f"""
    SELECT t.id FROM projections p JOIN tenants t ON t.id = p.tenant_id
    WHERE t.deleted_at IS NULL AND (p.server = '{RESTORED}' OR p.server <> :server)
      AND {OF_ONE} ORDER BY t.id
""")  # noqa: S608  our own names
