"""Cursors: they come back as they were issued, and any other is refused."""

import base64
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from app.http.cursors import MAX_BIGINT, BadCursor, decode, encode

AT, ID = datetime(2026, 1, 1, 12, 30, 0, 123456, tzinfo=UTC), UUID("6f0f7a3e-6b0b-4a52-9a0e-0c5ac0ffee00")


@pytest.mark.parametrize(
    "position", [(1,), (MAX_BIGINT,), (-MAX_BIGINT,), ("a space",), ("é 👏",), (1.5, "7"), (AT, ID)]
)
def test_a_position_comes_back_with_its_types(position: tuple[Any, ...]) -> None:
    cursor = encode(*position)
    assert decode(cursor, *map(type, position)) == position
    assert cursor.isascii()
    assert not set(cursor) & set("+/=&?"), "it stands in an address as it is"


def packed(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


@pytest.mark.parametrize(
    ("cursor", "kinds"),
    [
        ("", (int,)),
        ("nonsense", (int,)),
        ("é", (int,)),
        ("a b", (int,)),
        (packed("{}"), (int,)),
        (packed("7"), (int,)),
        (packed("[]"), (int,)),
        (packed("[1, 2]"), (int,)),
        (packed("[true]"), (int,)),
        (packed("[null]"), (int,)),
        (packed("[1.5]"), (int,)),
        (packed(f"[{MAX_BIGINT + 1}]"), (int,)),
        (packed("[NaN]"), (float,)),
        (packed('["x"]'), (UUID,)),
        (packed('["2026-01-01T00:00:00"]'), (datetime,)),
        (packed("[5]"), (datetime,)),
        (packed('["\\u0000"]'), (str,)),
        (packed("[[]]"), (str,)),
    ],
)
def test_a_cursor_that_was_not_issued_is_refused(cursor: str, kinds: tuple[type, ...]) -> None:
    with pytest.raises(BadCursor):
        decode(cursor, *kinds)
