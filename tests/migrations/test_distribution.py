"""Distributing over a Citus: what is missing is listed and done, rows move, new tables follow."""

import secrets
from collections.abc import Iterator

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import OperationalError

from migrations import distribution
from migrations.run import migrate
from tenants.engines import make_engine
from tests import citus
from tests.rules.test_schema import NOT_A_TENANTS

pytestmark = pytest.mark.skipif(citus.URL is None, reason="needs PLAUDIT_TEST_CITUS_URL")
DISTRIBUTED = text("SELECT logicalrelid::text FROM pg_dist_partition")
LOCAL_ROWS = text("""
    SELECT c.relname FROM pg_class c JOIN pg_dist_partition d ON d.logicalrelid = c.oid
    WHERE c.relkind = 'r' AND pg_relation_size(c.oid) > 0
""")


@pytest.fixture
def engine() -> Iterator[Engine]:
    with citus.new_database(f"plaudit_test_{secrets.token_hex(6)}") as url:
        engine = make_engine(url, pool_size=2)
        migrate(engine)
        yield engine
        engine.dispose()


def test_a_database_in_use_is_distributed_and_what_a_migration_adds_follows(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO tenants (id, name) VALUES ('acme', 'Acme')"))
        connection.execute(text("INSERT INTO outbox (tenant_id, kind, member) VALUES ('acme', 'page', '1')"))
        assert not distribution.is_distributed(connection)
        before = distribution.missing(connection)
    assert "table tenants is not distributed" in before
    assert "citus.propagate_set_commands is not 'local'" in before
    with engine.connect() as former:
        former.execute(text("SELECT 1"))
        assert [*distribution.distribute(engine)]
        with pytest.raises(OperationalError):  # it would not see its tenant
            former.execute(text("SELECT 1"))
    assert [*distribution.distribute(engine)] == [], "safe to run twice"
    engine.dispose()  # settings of the database apply to new connections
    with engine.begin() as connection:
        assert distribution.missing(connection) == []
        tables = {
            *connection.scalars(
                text(
                    "SELECT relname FROM pg_class WHERE relkind IN ('r', 'p') AND relnamespace = 'public'::regnamespace"
                )
            )
        }
        assert tables - {*connection.scalars(DISTRIBUTED)} == {*NOT_A_TENANTS, "credential_changes"}
        assert connection.scalar(text("SELECT name FROM tenants WHERE id = 'acme'")) == "Acme"
        assert connection.scalars(LOCAL_ROWS).all() == [], "the coordinator keeps no copy that nobody could erase"
        connection.execute(text("CREATE TABLE added (tenant_id text PRIMARY KEY REFERENCES tenants (id))"))
    migrate(engine)
    with engine.connect() as connection:
        assert "added" in connection.scalars(DISTRIBUTED).all()


def test_a_worker_that_forwards_settings_is_named(engine: Engine) -> None:
    assert [*distribution.distribute(engine)]
    with engine.connect() as connection:
        host, port = connection.execute(text("SELECT nodename, nodeport FROM pg_dist_node WHERE groupid > 0")).first()  # type: ignore[misc]
    address = make_url(engine.url).set(host=host, port=port)
    worker = make_engine(address.render_as_string(hide_password=False), pool_size=1)
    with worker.begin() as connection:
        connection.execute(text("SET LOCAL citus.enable_ddl_propagation = off"))
        connection.execute(text(f"ALTER DATABASE {address.database} SET citus.propagate_set_commands = 'local'"))
    worker.dispose()
    engine.dispose()
    with engine.connect() as connection:
        expected = f"worker {host}:{port} forwards settings: citus.propagate_set_commands"
        assert distribution.missing(connection) == [expected]
