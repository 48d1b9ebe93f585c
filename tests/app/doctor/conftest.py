"""Installations to examine: the tests' own servers, with a database that a test may break."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import text

from app.doctor import installation as installations
from app.doctor.findings import Finding, Level
from app.doctor.installation import Installation
from app.run.data_folder import Addresses
from app.settings import Settings
from tenants import db
from tenants.db import utcnow
from tests.conftest import fresh_database


@pytest.fixture
def scratch(servers: Addresses, settings: Settings, connected: None, tmp_path: Path) -> Iterator[Installation]:
    """A database of this test's own, to which this process is connected. (The next test connects to the usual one.)"""
    with fresh_database(servers) as fresh:
        own = replace(
            settings,
            database_url=fresh.database_url,
            service_database_url=fresh.service_database_url or None,
        )
        db.configure(service_url=own.service_database_url, owner_url=own.database_url, pool_size=2)
        yield installations.of(own, tmp_path, is_local=False, now=utcnow())
        db.dispose()


def execute(*statements: str) -> None:
    """As the owner of the database, each in a transaction of its own."""
    for statement in statements:
        with db.owner_engine().connect() as connection:
            connection.execute(text(statement))


def bad(findings: Iterable[Finding]) -> list[tuple[Level, str]]:
    """What is not fine."""
    return [(finding.level, finding.what) for finding in findings if finding.level is not Level.OK]
