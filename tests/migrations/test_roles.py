"""An owner that may not use or grant the service's roles. (One that may not create them: tests/servers.)"""

import secrets
from collections.abc import Iterator

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import Engine, text
from sqlalchemy.engine import make_url

from app.run.data_folder import Addresses
from migrations import roles
from migrations.head import head_revision
from migrations.run import migrate
from tenants.engines import make_engine
from tenants.errors import Conflict

Login = tuple[Engine, str]


@pytest.fixture
def server(servers: Addresses) -> Iterator["psycopg.Connection[object]"]:
    """As the owner of the tests' database, who has created the roles."""
    with psycopg.connect(servers.database_url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def other(server: "psycopg.Connection[object]", servers: Addresses) -> Iterator[Login]:
    """A database whose owner has no rights but that, and the name of both."""
    name = f"plaudit_test_{secrets.token_hex(4)}"
    named = sql.Identifier(name)
    server.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD 'pw'").format(named))
    server.execute(sql.SQL("GRANT {} TO CURRENT_USER").format(named))
    server.execute(sql.SQL("CREATE DATABASE {0} OWNER {0}").format(named))
    url = make_url(servers.database_url).set(username=name, password="pw", database=name)
    engine = make_engine(url.render_as_string(hide_password=False), pool_size=1)
    try:
        yield engine, name
    finally:
        engine.dispose()
        server.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(named))
        server.execute(sql.SQL("DROP ROLE {}").format(named))


def test_an_owner_that_is_no_member_of_the_roles_is_told_the_statement_that_helps(
    other: Login, server: "psycopg.Connection[object]"
) -> None:
    engine, name = other
    grant = f"GRANT plaudit_service, plaudit_platform TO {name}"
    with pytest.raises(Conflict, match=f"The login {name} may not use the roles .*: as a superuser run {grant}$"):
        migrate(engine)
    with engine.connect() as connection:
        assert roles.not_granted(connection, name) == ["plaudit_service", "plaudit_platform"]
    server.execute(grant.encode())
    assert migrate(engine) == (None, head_revision())
    with engine.begin() as connection:
        connection.execute(text("SET ROLE plaudit_service"))


def test_a_login_of_the_service_must_exist_and_have_the_roles(
    other: Login, server: "psycopg.Connection[object]"
) -> None:
    engine, name = other
    login = f"{name}_web"
    url = f"postgresql://{login}:pw@127.0.0.1/x"
    with pytest.raises(Conflict, match=f"The login {login} of PLAUDIT_SERVICE_DATABASE_URL does not exist"):
        migrate(engine, service_url=url)
    server.execute(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(login)))
    try:
        grant = f"GRANT plaudit_service, plaudit_platform TO {login}"
        with pytest.raises(Conflict, match=f"may not grant its roles to {login}.* run {grant}$"):
            migrate(engine, service_url=url)
        server.execute(grant.encode())
        assert migrate(engine, service_url=url) == (None, head_revision())
        assert migrate(engine, service_url=url) == (head_revision(), head_revision())
    finally:
        server.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(login)))
