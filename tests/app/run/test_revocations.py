"""What a restore applies again: the scripts alone, around a few tables that stand for the replaced and the restored.

With a real backup, over HTTP: tests/attacks/test_restored_credentials.py.
"""

import json
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from app.run import revocations
from app.run.backups import _DROP_EVERYTHING
from app.run.data_folder import Addresses
from app.run.revocations import Restored
from migrations.run import load_models
from tenants.db import Base
from tests.conftest import fresh_database

Rows = list[tuple[Any, ...]]
ACME = """
    CREATE TABLE alembic_version (version_num text);
    CREATE TABLE tenants (id text PRIMARY KEY, created_at timestamptz, deleted_at timestamptz);
    INSERT INTO tenants VALUES ('acme', '2026-01-01', NULL);
"""
STATIC_TOKENS = """
    CREATE TABLE static_tokens (tenant_id text, id int, revoked_at timestamptz, expires_at timestamptz,
                                PRIMARY KEY (tenant_id, id));
"""
TWO_TOKENS = f"{ACME} {STATIC_TOKENS} INSERT INTO static_tokens VALUES ('acme', 1, NULL), ('acme', 2, NULL);"


# Tables of credentials without a rule.
WITHOUT_RULE = {"live_tickets": "valid for 30 seconds"}
ENDED_BY = {"revoked_at", "used_at", "password_hash", "refresh_hash", "secret_hash", "ticket_hash", "token_hash"}


def test_every_table_of_credentials_has_rules_whose_columns_exist() -> None:
    """A rule without its table or column is skipped, so a wrong name would go unnoticed."""
    load_models()
    tables = {table.name: {column.name for column in table.columns} for table in Base.metadata.tables.values()}
    of_credentials = {table for table, columns in tables.items() if columns & ENDED_BY}
    ruled = {rule.table for rule in revocations.AGAIN}
    assert of_credentials - ruled - WITHOUT_RULE.keys() == set()
    assert {"sessions", "oauth_clients", "users", "password_resets"} <= of_credentials
    for rule in (*revocations.AGAIN, *revocations.REVOKE_ALL, *revocations.VALID):
        assert {*rule.columns, *rule.reset} <= tables.get(rule.table, {*rule.columns}), rule


@pytest.fixture
def database(servers: Addresses) -> Iterator[psycopg.Connection[Any]]:
    with fresh_database(servers) as fresh, psycopg.connect(fresh.database_url, autocommit=True) as connection:
        connection.execute(_DROP_EVERYTHING)
        yield connection


def replaced(
    database: psycopg.Connection[Any], now: str, backup: str, query: str, *, revoke_all: bool = False
) -> tuple[Restored, Rows]:
    """Restore `backup` over `now`. Returns what the restore says, and the rows of this query afterwards."""
    database.execute(now.encode())
    script = "".join(
        ("BEGIN;", revocations.copying(), _DROP_EVERYTHING, backup, revocations.applying(revoke_all=revoke_all))
    )
    cursor = database.execute(script.encode())
    while cursor.nextset():
        pass
    said = revocations.parse(json.dumps(cursor.fetchall()[0][0]))
    database.execute("COMMIT")
    return said, database.execute(query.encode()).fetchall()


def test_rows_that_were_deleted_since_have_ended_and_those_of_other_tenants_are_counted(
    database: psycopg.Connection[Any],
) -> None:
    """The second static token is purged. Another tenant is not in the replaced database."""
    now = f"{ACME} {STATIC_TOKENS} INSERT INTO static_tokens VALUES ('acme', 1, '2026-02-01');"
    of_other = (
        "INSERT INTO tenants VALUES ('other', '2026-01-01', NULL); INSERT INTO static_tokens VALUES ('other', 3);"
    )
    said, rows = replaced(
        database, now, TWO_TOKENS + of_other, "SELECT id, revoked_at IS NULL FROM static_tokens ORDER BY id"
    )
    assert rows == [(1, False), (3, True)]
    assert said.applied_again == {"static tokens revoked": 2}
    assert said.valid_again == {"static tokens": 1}
    assert said.tenants_back == ("other",)


@pytest.mark.parametrize(
    ("now", "back"),
    [
        ("", ()),
        ("CREATE TABLE users (name text); CREATE TABLE sessions (id int PRIMARY KEY);", ()),
        (f"{ACME} {STATIC_TOKENS} UPDATE tenants SET deleted_at = '2026-02-01';", ("acme",)),
        (f"{ACME} {STATIC_TOKENS} UPDATE tenants SET created_at = '2026-02-01';", ("acme",)),
        (f"{ACME} {STATIC_TOKENS} DELETE FROM tenants;", ()),
    ],
    ids=["no database", "another program's", "deleted", "deleted and created again", "a new server"],
)
def test_nothing_is_ended_where_the_replaced_database_does_not_know_the_tenant(
    database: psycopg.Connection[Any], now: str, back: tuple[str, ...]
) -> None:
    said, rows = replaced(database, now, TWO_TOKENS, "SELECT FROM static_tokens WHERE revoked_at IS NULL")
    assert len(rows) == 2
    assert said.valid_again == {"static tokens": 2}
    assert said.tenants_back == back


def test_revoke_all_ends_static_tokens_too(database: psycopg.Connection[Any]) -> None:
    said, rows = replaced(
        database, "", TWO_TOKENS, "SELECT FROM static_tokens WHERE revoked_at IS NULL", revoke_all=True
    )
    assert rows == []
    assert (said.revoked, said.valid_again) == ({"static tokens": 2}, {})


@pytest.mark.parametrize("drop", ["DROP TABLE static_tokens;", "ALTER TABLE static_tokens DROP revoked_at;"])
@pytest.mark.parametrize("is_older", [False, True], ids=["the replaced", "the backup"])
def test_a_schema_without_a_table_or_column_leaves_its_rule_out(
    database: psycopg.Connection[Any], drop: str, is_older: bool
) -> None:
    now, backup = (TWO_TOKENS, TWO_TOKENS + drop) if is_older else (TWO_TOKENS + drop, TWO_TOKENS)
    said, _ = replaced(database, now, backup, "SELECT FROM tenants")
    assert said.applied_again == {}


@pytest.mark.parametrize(("changed_at", "kept"), [("2026-02-01", ("member", "new")), ("2025-01-01", ("admin", "old"))])
def test_of_two_states_of_a_user_the_later_wins(
    database: psycopg.Connection[Any], changed_at: str, kept: tuple[str, str]
) -> None:
    """A backup may be newer than what it replaces, after a wrong one was restored."""
    users = """
        CREATE TABLE users (tenant_id text, id uuid, updated_at timestamptz, role text, password_hash text,
                            PRIMARY KEY (tenant_id, id));
        INSERT INTO users VALUES ('acme', '00000000-0000-0000-0000-000000000001', '2026-01-01', 'admin', 'old');
    """
    change = f"UPDATE users SET updated_at = '{changed_at}', role = 'member', password_hash = 'new';"
    said, rows = replaced(database, ACME + users + change, ACME + users, "SELECT role, password_hash FROM users")
    assert rows == [kept]
    assert said.valid_again == {}
    assert said.applied_again == ({"passwords changed": 1, "roles changed": 1} if kept[0] == "member" else {})


def test_an_erased_user_is_blank_before_anybody_sees_them_and_a_second_restore_names_them_too(
    database: psycopg.Connection[Any],
) -> None:
    users = """
        CREATE TABLE users (tenant_id text, id uuid, updated_at timestamptz, erased_at timestamptz, external_id text,
                            username text, segments text[] NOT NULL DEFAULT '{}', PRIMARY KEY (tenant_id, id));
        INSERT INTO users
        VALUES ('acme', '00000000-0000-0000-0000-000000000001', '2026-01-01', NULL, 'ada', 'ada_l', '{eng}');
    """
    blank = "UPDATE users SET erased_at = '2026-02-01', external_id = NULL, username = NULL, segments = '{}';"
    asked = "SELECT external_id, username, segments, erased_at IS NULL FROM users"
    said, rows = replaced(database, ACME + users + blank, ACME + users, asked)
    assert rows == [(None, None, [], False)]
    assert [(one.tenant_id, one.external_id) for one in said.erased] == [("acme", "ada")]
    again, rows = replaced(database, "SELECT", ACME + users, asked)
    assert (again, rows) == (said, [(None, None, [], False)]), "a restore that was interrupted is repeated"


def test_a_signing_key_that_was_retired_signs_no_more_and_the_present_ones_stay(
    database: psycopg.Connection[Any],
) -> None:
    keys = """
        CREATE TABLE signing_keys (kid text PRIMARY KEY, private_key bytea, public_jwk jsonb, created_at timestamptz,
                                   activates_at timestamptz, retires_at timestamptz);
        INSERT INTO signing_keys SELECT unnest('{purged,leaked}'::text[]), '', '{}', now(), now(), NULL;
    """
    change = """
        DELETE FROM signing_keys WHERE kid = 'purged';
        UPDATE signing_keys SET retires_at = now() + interval '1 hour';
        INSERT INTO signing_keys SELECT 'new', '', '{}', now(), now(), NULL;
    """
    _, rows = replaced(
        database, ACME + keys + change, ACME + keys, "SELECT kid, retires_at IS NULL FROM signing_keys ORDER BY kid"
    )
    assert rows == [("leaked", False), ("new", True)]
