"""The roles that transactions switch to: whether the owner can create and use them, and who else is granted them.

What is missing is said with the statement that repairs it, which only a superuser may run.
"""

from collections.abc import Sequence

from sqlalchemy import Connection, text
from sqlalchemy.exc import ProgrammingError

from tenants.db import PLATFORM_ROLE, SERVICE_ROLE
from tenants.errors import Conflict

ROLES = (SERVICE_ROLE, PLATFORM_ROLE)
NOT_PERMITTED = "42501"


def require_creatable(connection: Connection) -> None:
    """Refuse an owner that would have to create the roles and may not."""
    missing = connection.scalar(
        text("SELECT count(*) < :number FROM pg_roles WHERE rolname = ANY(:roles)"),
        {"roles": list(ROLES), "number": len(ROLES)},
    )
    if missing and not connection.scalar(
        text("SELECT rolsuper OR rolcreaterole FROM pg_roles WHERE rolname = current_user")
    ):
        owner = _quoted(connection, current_user(connection))
        created = "; ".join(f"CREATE ROLE {role} NOLOGIN NOINHERIT" for role in ROLES)
        raise Conflict(
            f"The login {owner} may not create roles: as a superuser run ALTER ROLE {owner} CREATEROLE, "
            f"or {created}; {grant_to(connection, current_user(connection))}"
        )


def require_usable(connection: Connection) -> None:
    """Refuse an owner that is no member of the roles: each of its transactions would fail."""
    owner = current_user(connection)
    if not_granted(connection, owner):
        raise Conflict(
            f"The login {_quoted(connection, owner)} may not use the roles {' and '.join(ROLES)}, which another login "
            f"has created: as a superuser run {grant_to(connection, owner)}"
        )


def grant_to_login(connection: Connection, login: str) -> None:
    """Grant the service's login the roles it uses (never the owner's)."""
    quoted = _quoted(connection, login)
    if not connection.scalar(text("SELECT EXISTS (SELECT FROM pg_roles WHERE rolname = :login)"), {"login": login}):
        raise Conflict(
            f"The login {quoted} of PLAUDIT_SERVICE_DATABASE_URL does not exist: "
            f"as a superuser run CREATE ROLE {quoted} LOGIN PASSWORD '…'"
        )
    try:
        with connection.begin_nested():
            connection.execute(text(grant_to(connection, login)))
    except ProgrammingError as error:
        # A superuser may have granted them, in place of an owner that may only use them.
        if getattr(error.orig, "sqlstate", None) != NOT_PERMITTED:
            raise
        if not_granted(connection, login):
            raise Conflict(
                f"The login {_quoted(connection, current_user(connection))} may not grant its roles to {quoted}, the "
                f"login of PLAUDIT_SERVICE_DATABASE_URL: as a superuser run {grant_to(connection, login)}"
            ) from error


def not_granted(connection: Connection, login: str) -> Sequence[str]:
    """The roles that this login cannot switch to."""
    return connection.scalars(_NOT_GRANTED, {"roles": list(ROLES), "login": login}).all()


def grant_to(connection: Connection, login: str) -> str:
    """The statement that grants a login the roles."""
    return f"GRANT {', '.join(ROLES)} TO {_quoted(connection, login)}"


def current_user(connection: Connection) -> str:
    return str(connection.scalar(text("SELECT current_user")))


# Since PostgreSQL 16 a member need not be allowed to switch to the role: whoever creates one is not.
_NOT_GRANTED = text("""
    SELECT wanted
    FROM unnest(CAST(:roles AS text[])) WITH ORDINALITY AS roles(wanted, place)
    LEFT JOIN pg_roles r ON r.rolname = wanted
    LEFT JOIN pg_roles l ON l.rolname = :login
    WHERE (pg_has_role(l.oid, r.oid, CASE WHEN current_setting('server_version_num')::int < 160000
                                          THEN 'MEMBER' ELSE 'SET' END)) IS NOT TRUE
    ORDER BY place
""")


def _quoted(connection: Connection, name: str) -> str:
    return connection.dialect.identifier_preparer.quote(name)
