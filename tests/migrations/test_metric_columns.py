"""A new metric or window is added to a database in use: its columns and boards are like those of the others."""

from collections.abc import Iterator
from datetime import datetime
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Connection, Engine, Table, insert, text

from analytics.boards.page_numbers import PageStats
from analytics.boards.user_numbers import UserStats
from app.run.data_folder import Addresses
from migrations.metric_columns import page_metric, window
from migrations.run import migrate
from tenants.db import Base, utcnow
from tests.migrations.conftest import empty_database

USER = UUID(int=1)


@pytest.fixture(scope="module")
def migrated(servers: Addresses) -> Iterator[Engine]:
    with empty_database(servers) as made:
        migrate(made)
        yield made


@pytest.fixture
def tx(migrated: Engine) -> Iterator[Connection]:
    """With the numbers of a page and a user; rolled back at the end."""
    with migrated.connect() as connection:
        connection.execute(text("INSERT INTO tenants (id, name, created_at) VALUES ('acme', 'Acme', now())"))
        connection.execute(
            text("INSERT INTO users (tenant_id, id, created_at, updated_at) VALUES ('acme', :id, now(), now())"),
            {"id": USER},
        )
        write_numbers(connection, PageStats, page_id=1)
        write_numbers(connection, UserStats, user_id=USER, metric="points")
        yield connection


def write_numbers(tx: Connection, model: type[Base], **subject: Any) -> None:
    """As the release before does: its models have no column of the new metric or window."""
    table = model.__table__
    assert isinstance(table, Table)
    by_type = {str: "", int: 0, float: 0.0, bool: False, datetime: utcnow(), list: []}
    numbers = {column.name: by_type.get(column.type.python_type) for column in table.columns}
    tx.execute(insert(table).values({**numbers, "tenant_id": "acme", **subject}))


def columns_of(tx: Connection, table: str, window_name: str) -> dict[str, str]:
    """The columns of a window and their types, by what comes before its name. None of them is nullable."""
    rows = tx.execute(
        text("""
            SELECT left(column_name, -length(:ending)) AS name, data_type, is_nullable FROM information_schema.columns
            WHERE table_name = :table AND right(column_name, length(:ending)) = :ending
        """),
        {"table": table, "ending": f"_{window_name}"},
    ).all()
    assert {row.is_nullable for row in rows} == {"NO"}
    return {row.name: row.data_type for row in rows}


def global_boards(tx: Connection, **where: str) -> set[tuple[str, str]]:
    ((column, value),) = where.items()
    rows = tx.execute(text(f"SELECT time_window, metric FROM global_boards WHERE {column} = :value"), {"value": value})
    return {(row.time_window, row.metric) for row in rows}


def test_a_page_metric_has_columns_and_global_boards_for_each_window(tx: Connection) -> None:
    for statement in page_metric("imaginary", "bigint", ["1d", "all"]):
        tx.execute(text(statement))
    write_numbers(tx, PageStats, page_id=2)
    assert tx.execute(text("SELECT imaginary_1d, imaginary_all FROM page_stats")).all() == [(0, 0)] * 2
    assert [columns_of(tx, "page_stats", name).get("imaginary") for name in ("1d", "7d", "all")] == [
        "bigint",
        None,
        "bigint",
    ]
    assert global_boards(tx, metric="imaginary") == {("1d", "imaginary"), ("all", "imaginary")}


def test_a_window_has_the_columns_and_global_boards_of_the_other_windows(tx: Connection) -> None:
    pages = columns_of(tx, "page_stats", "30d")
    for statement in window("999d", pages):
        tx.execute(text(statement))
    write_numbers(tx, PageStats, page_id=2)
    assert columns_of(tx, "page_stats", "999d") == pages
    assert columns_of(tx, "user_stats", "999d") == columns_of(tx, "user_stats", "30d")
    assert tx.execute(text("SELECT likes_999d, score_999d FROM page_stats")).all() == [(0, 0)] * 2
    assert tx.execute(text("SELECT value_999d, member_999d FROM user_stats")).all() == [(0, "")]
    others = {metric for _, metric in global_boards(tx, time_window="30d")}
    assert global_boards(tx, time_window="999d") == {("999d", metric) for metric in others}


def test_a_global_board_that_exists_keeps_its_version(tx: Connection) -> None:
    tx.execute(text("INSERT INTO global_boards (time_window, metric, version) VALUES ('1d', 'imaginary', 7)"))
    for statement in page_metric("imaginary", "bigint", ["1d"]):
        tx.execute(text(statement))
    assert tx.scalars(text("SELECT version FROM global_boards WHERE metric = 'imaginary'")).all() == [7]
