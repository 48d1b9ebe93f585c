"""Opaque cursors: where a list continues. A cursor that we did not issue is a clear error."""

import base64
import binascii
from typing import Any

import orjson

from tenants.errors import Invalid

# PostgreSQL's largest bigint.
MAX_BIGINT = 2**63 - 1


class BadCursor(Invalid):
    code = "invalid_cursor"
    title = "The cursor is not valid"


def not_ours() -> BadCursor:
    """The error for a cursor that we did not issue."""
    detail = "Use next_cursor exactly as it was sent"
    return BadCursor.field("cursor", "not a cursor of this list", detail=detail)


def encode(*position: Any) -> str:
    return base64.urlsafe_b64encode(orjson.dumps(position, default=str)).decode().rstrip("=")


def decode(cursor: str, *kinds: type) -> tuple[Any, ...]:
    """The position, each part converted to its type (`datetime` and `UUID` from their text)."""
    try:
        parts = orjson.loads(base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True))
        if not isinstance(parts, list) or len(parts) != len(kinds):
            raise not_ours()
        if any(isinstance(part, str) and "\x00" in part for part in parts):
            raise not_ours()
        return tuple(_part(value, kind) for value, kind in zip(parts, kinds, strict=True))
    except (binascii.Error, ValueError, TypeError, AttributeError):
        raise not_ours() from None


def _part(value: Any, kind: type) -> Any:
    from datetime import datetime

    if kind is datetime:
        moment = datetime.fromisoformat(value)
        if moment.tzinfo is None:
            raise not_ours()
        return moment
    if isinstance(value, bool) or (isinstance(value, int) and abs(value) > MAX_BIGINT):
        raise not_ours()
    if isinstance(value, kind):
        return value
    if isinstance(value, str):
        return kind(value)
    raise not_ours()
