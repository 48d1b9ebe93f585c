"""The roles and logins of the local PostgreSQL.

Only this module uses the superuser and its password. The owner of the database, which migrations and commands log in
as, is an ordinary role: SQL injected as the owner reaches the database, not the files and programs of the machine. The
service's login has fewer rights still.
"""

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from app.run import server_settings
from app.run.data_folder import LocalServersError

if TYPE_CHECKING:  # imported when they are used: `plaudit up` starts its servers before it loads any library
    from psycopg import Connection, sql

SUPERUSER_LOGIN = "plaudit_super"
OWNER_LOGIN = "plaudit"
SERVICE_LOGIN = "plaudit_app"
DATABASE = "plaudit"
# Exists while the roles of an old data folder are being converted.
_CONVERTING_LOGIN = "plaudit_converting"
# PostgreSQL's numbers: the role that initdb creates, and the first object that initdb does not create.
_BOOTSTRAP_ROLE = 10
_FIRST_NORMAL_OBJECT = 16384


@dataclass(frozen=True)
class Logins:
    """The logins of one local server, at 127.0.0.1:port."""

    port: int
    superuser_password: str
    owner_password: str
    service_password: str

    @property
    def superuser_url(self) -> str:
        return self.url(SUPERUSER_LOGIN, self.superuser_password)

    @property
    def owner_url(self) -> str:
        return self.url(OWNER_LOGIN, self.owner_password)

    @property
    def service_url(self) -> str:
        return self.url(SERVICE_LOGIN, self.service_password)

    def url(self, login: str, password: str) -> str:
        return f"postgresql://{login}:{password}@127.0.0.1:{self.port}/{DATABASE}"


def ensure(logins: Logins) -> bool:
    """Create the roles and the database where they are missing. False while the server accepts no connections."""
    import psycopg

    try:
        server = _connect(logins.superuser_url, database="postgres")
    except psycopg.OperationalError as error:
        if error.pgconn is None or not error.pgconn.used_password:
            return False
        _convert(logins)
        server = _connect(logins.superuser_url, database="postgres")
    with server:
        server.execute(_statement("DROP ROLE IF EXISTS {}", _CONVERTING_LOGIN))
        if not _has_role(server, OWNER_LOGIN):
            _create_owner(server, logins)
        if not _has_role(server, SERVICE_LOGIN):
            _create_login(server, SERVICE_LOGIN, "NOINHERIT", logins.service_password)
        # The owner may end the service's sessions: a restore needs to.
        server.execute(_statement("GRANT {} TO {}", SERVICE_LOGIN, OWNER_LOGIN))
        _count_statements(server)
        if not _has_database(server):
            server.execute(_statement("CREATE DATABASE {} OWNER {}", DATABASE, OWNER_LOGIN))
    return True


def _count_statements(server: "Connection[Any]") -> None:
    """Let the owner read what statements cost, for `plaudit doctor`; where the server counts.

    In the database `postgres`: in ours it would be in the way of a restore (app/doctor/statements.py).
    """
    preloaded = server.execute("SHOW shared_preload_libraries").fetchone()
    if preloaded is not None and server_settings.STATEMENTS in preloaded[0]:
        server.execute(_statement("CREATE EXTENSION IF NOT EXISTS {}", server_settings.STATEMENTS))
        server.execute(_statement("GRANT pg_read_all_stats TO {}", OWNER_LOGIN))


def _convert(logins: Logins) -> None:
    """Take the superuser's rights from the owner of a data folder that an earlier release created.

    There the owner is the role that initdb created, which PostgreSQL never demotes. So that role gets the superuser's
    name and password, and a new, ordinary owner gets everything that it owned, in one transaction. Only another
    superuser can rename it, hence a third, temporary role.
    """
    import psycopg

    from tenants.db import PLATFORM_ROLE, SERVICE_ROLE

    try:
        password = secrets.token_urlsafe(32)
        with _connect(logins.owner_url, database="postgres") as server:
            server.execute(_statement("DROP ROLE IF EXISTS {}", _CONVERTING_LOGIN))
            _create_login(server, _CONVERTING_LOGIN, "SUPERUSER", password)
            database = DATABASE if _has_database(server) else "postgres"
        converting_url = logins.url(_CONVERTING_LOGIN, password)
        with _connect(converting_url, database=database) as server, server.transaction():
            server.execute(_statement("ALTER ROLE {} RENAME TO {}", OWNER_LOGIN, SUPERUSER_LOGIN))
            _set_password(server, SUPERUSER_LOGIN, logins.superuser_password)
            _create_owner(server, logins)
            for role in (SERVICE_ROLE, PLATFORM_ROLE):
                if _has_role(server, role):
                    server.execute(_statement("GRANT {} TO {} WITH ADMIN OPTION", role, OWNER_LOGIN))
            if database == DATABASE:
                server.execute(_statement("ALTER DATABASE {} OWNER TO {}", DATABASE, OWNER_LOGIN))
                for (statement,) in server.execute(_OWNED, _OWNED_OF).fetchall():
                    server.execute(statement)
    except psycopg.Error as error:
        raise LocalServersError(
            f"The local PostgreSQL does not accept the passwords in secrets.json, and its roles could not be converted "
            f"({str(error).splitlines()[0]}); nothing was changed"
        ) from None


# Statements that give the new owner all that the old one owns in this database. (REASSIGN OWNED refuses this role.)
_OWNED = """
    SELECT format('ALTER SCHEMA %%I OWNER TO %%I', nspname, %(owner)s::text)
    FROM pg_namespace WHERE nspowner = %(old)s AND oid >= %(first)s
    UNION ALL
    SELECT format('ALTER TABLE %%s OWNER TO %%I', oid::regclass, %(owner)s::text)
    FROM pg_class c WHERE relowner = %(old)s AND oid >= %(first)s AND (
        relkind IN ('r', 'p', 'v', 'm', 'f')
        OR relkind = 'S' AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_class'::regclass
            AND d.objid = c.oid AND d.refclassid = 'pg_class'::regclass AND d.deptype IN ('a', 'i')))
    UNION ALL
    SELECT format('ALTER ROUTINE %%s OWNER TO %%I', oid::regprocedure, %(owner)s::text)
    FROM pg_proc WHERE proowner = %(old)s AND oid >= %(first)s
    UNION ALL
    SELECT format('ALTER TYPE %%s OWNER TO %%I', oid::regtype, %(owner)s::text)
    FROM pg_type WHERE typowner = %(old)s AND oid >= %(first)s AND typtype IN ('e', 'd')
    UNION ALL
    SELECT format('ALTER POLICY %%I ON %%s TO %%I', polname, polrelid::regclass, %(owner)s::text)
    FROM pg_policy WHERE polroles = ARRAY[%(old)s::oid]
"""
_OWNED_OF = {"owner": OWNER_LOGIN, "old": _BOOTSTRAP_ROLE, "first": _FIRST_NORMAL_OBJECT}


def _connect(url: str, *, database: str) -> "Connection[Any]":
    import psycopg

    return psycopg.connect(url, dbname=database, autocommit=True, connect_timeout=2)


def _has_role(server: "Connection[Any]", name: str) -> bool:
    return server.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [name]).fetchone() is not None


def _has_database(server: "Connection[Any]") -> bool:
    return server.execute("SELECT 1 FROM pg_database WHERE datname = %s", [DATABASE]).fetchone() is not None


def _create_owner(server: "Connection[Any]", logins: Logins) -> None:
    """With the rights that migrations need: they create the service's roles."""
    _create_login(server, OWNER_LOGIN, "CREATEROLE", logins.owner_password)


def _create_login(server: "Connection[Any]", name: str, attributes: str, password: str) -> None:
    with server.transaction():
        server.execute(_statement("CREATE ROLE {} LOGIN " + attributes, name))
        _set_password(server, name, password)


def _set_password(server: "Connection[Any]", name: str, password: str) -> None:
    """Sent as its verifier: a statement that fails is written to the server's log."""
    from psycopg import sql

    verifier = server.pgconn.encrypt_password(password.encode(), name.encode(), b"scram-sha-256").decode()
    server.execute(sql.SQL("ALTER ROLE {} PASSWORD {}").format(sql.Identifier(name), sql.Literal(verifier)))


def _statement(template: str, *names: str) -> "sql.Composed":
    from psycopg import sql

    return sql.SQL(template).format(*map(sql.Identifier, names))
