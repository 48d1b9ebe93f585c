"""Two addresses of one database, or of two. (Behind PgBouncer, with the commands: tests/servers/test_pgbouncer.py.)"""

from dataclasses import replace

import pytest

from app.run import direct_address
from app.run.data_folder import Addresses
from app.run.direct_address import Identity
from app.settings import Settings, SettingsError
from tests.conftest import fresh_database

HERE = Identity("plaudit", 5, system=1)
ANOTHER_SERVER = "leads to another server than DATABASE_URL (each of them has a database plaudit)"


@pytest.mark.parametrize(
    ("direct", "said"),
    [
        (HERE, None),
        (replace(HERE, oid=6), None),  # the server's own identity and the name are enough
        (replace(HERE, name="plaudit2"), "leads to another database (plaudit2) than DATABASE_URL (plaudit)"),
        (replace(HERE, system=2), ANOTHER_SERVER),
        (replace(HERE, system=None), None),
        (replace(HERE, system=None, oid=6), ANOTHER_SERVER),
    ],
)
def test_a_database_is_known_by_its_server_and_name(direct: Identity, said: str | None) -> None:
    found = direct_address.difference(HERE, direct)
    assert found == (None if said is None else f"PLAUDIT_DIRECT_DATABASE_URL {said}")


def test_another_database_is_refused_and_one_that_cannot_be_compared_is_not(
    servers: Addresses, settings: Settings, connected: None
) -> None:
    with fresh_database(servers) as other:
        direct_address.require_same(replace(settings, direct_database_url=None))
        direct_address.require_same(replace(settings, direct_database_url=settings.database_url))
        wrong = replace(settings, direct_database_url=other.database_url)
        with pytest.raises(SettingsError, match="leads to another database"):
            direct_address.require_same(wrong)
        direct_address.require_same(replace(wrong, database_url="postgresql://plaudit@127.0.0.1:1/plaudit"))
