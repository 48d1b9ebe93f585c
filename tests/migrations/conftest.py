"""Databases of the tests' server without our schema."""

import contextlib
import secrets
from collections.abc import Iterator

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import Engine
from sqlalchemy.engine import make_url

from app.run.data_folder import Addresses
from tenants.engines import make_engine


@contextlib.contextmanager
def empty_database(servers: Addresses) -> Iterator[Engine]:
    """A new database, as its owner."""
    name = f"plaudit_test_{secrets.token_hex(6)}"
    with psycopg.connect(servers.database_url, autocommit=True) as server:
        server.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    url = make_url(servers.database_url).set(database=name).render_as_string(hide_password=False)
    made = make_engine(url, pool_size=2)
    try:
        yield made
    finally:
        made.dispose()
        with psycopg.connect(servers.database_url, autocommit=True) as server:
            server.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@pytest.fixture
def engine(servers: Addresses) -> Iterator[Engine]:
    """An empty database of this test's own."""
    with empty_database(servers) as made:
        yield made
