"""Whether PLAUDIT_DIRECT_DATABASE_URL is another way to the database of DATABASE_URL, and not another database.

Compared is what the servers say, not the addresses: a pooler may have another name for the database. Standbys have the
identity of their primary, so a backup may be taken from one.
"""

from dataclasses import dataclass

from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from app.settings import Settings, SettingsError
from tenants.engines import make_engine


@dataclass(frozen=True)
class Identity:
    """What identifies a database."""

    name: str
    oid: int
    # Of the server and its standbys; None: this login may not read it.
    system: int | None


def require_same(settings: Settings) -> None:
    """Refuse a direct address of another database. If one of them cannot be reached, nothing can be compared."""
    if settings.direct_database_url is None or settings.database_url is None:
        return
    try:
        named, direct = identity(settings.database_url), identity(settings.direct_database_url)
    except DBAPIError:  # a restore may be for exactly that; and a command says itself what it cannot reach
        return
    if said := difference(named, direct):
        raise SettingsError(said)


def difference(named: Identity, direct: Identity) -> str | None:
    """In one sentence; None: they are the same."""
    if named.name != direct.name:
        return f"PLAUDIT_DIRECT_DATABASE_URL leads to another database ({direct.name}) than DATABASE_URL ({named.name})"
    is_known = named.system is not None and direct.system is not None
    if named.system != direct.system if is_known else named.oid != direct.oid:
        return (
            "PLAUDIT_DIRECT_DATABASE_URL leads to another server than DATABASE_URL "
            f"(each of them has a database {named.name})"
        )
    return None


def identity(url: str) -> Identity:
    """Of the database that this address leads to."""
    engine = make_engine(url, pool_size=1)
    try:
        with engine.connect() as connection:
            connection.execute(text("SET TRANSACTION READ ONLY"))
            name, oid, may_read = connection.execute(_DATABASE).one()
            system = connection.scalar(_SYSTEM) if may_read else None
    finally:
        engine.dispose()
    return Identity(str(name), int(oid), system)


_DATABASE = text("""
    SELECT datname, oid::bigint, has_function_privilege('pg_control_system()', 'EXECUTE')
    FROM pg_database WHERE datname = current_database()
""")
_SYSTEM = text("SELECT system_identifier FROM pg_control_system()")
