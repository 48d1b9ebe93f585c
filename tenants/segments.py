"""Segments: parts of a tenant's users, of which a user may be in several, in an order.

The first is in the column `segment`, which the release before migration 0025 reads and writes too; `segments` has all
of them. Whoever reads takes the first from the one and the others from the other.
"""

import re
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Index, TextClause, text

from tenants import ceilings
from tenants.ceilings import Ceiling
from tenants.db import Tx
from tenants.errors import Invalid

SEGMENT = re.compile(r"[A-Za-z0-9._~-]{1,64}")
MAX_SEGMENTS = 8
# Where rows of `users` and `user_stats` have them: the first, and the others by their places.
COLUMNS = ("segment", *(f"segments[{place}]" for place in range(2, MAX_SEGMENTS + 1)))


def indexes(table: str) -> list[Index]:
    """One for each place but the first."""
    return [
        Index(f"ix_{table}_segment_{place}", "tenant_id", text(f"({column})"), postgresql_where=f"{column} IS NOT NULL")
        for place, column in enumerate(COLUMNS[1:], 2)
    ]


def of_user(segment: str | None, stored: Sequence[str]) -> list[str]:
    """A user's segments, from the two columns. Without a first there are no others."""
    return [segment, *(other for other in stored[1:] if other != segment)] if segment is not None else []


def count(tx: Tx, limit: int) -> int:
    """The number of segments, including former ones that still have boards, counted up to `limit`."""
    return int(tx.scalar(_COUNT, {"tenant": tx.tenant, "limit": limit}) or 0)


def to_store(tx: Tx, values: dict[str, Any]) -> dict[str, Any]:
    """The columns for a change of `segments`, or of `segment`; both are taken out of `values`.

    A new `segment` replaces the first, in the statement itself; None removes them all.
    """
    given = [name for name in ("segment", "segments") if name in values]
    if not given:
        return {}
    if len(given) > 1:
        raise Invalid.field("segment", "is the first of segments: send one of the two")
    name, changed = given[0], values.pop(given[0])
    wanted = changed if name == "segments" else [changed] if changed is not None else []
    _check(tx, name, wanted)
    first = wanted[0] if wanted else None
    replaces_first = name == "segment" and first is not None
    return {"segment": first, "stored_segments": _with_others(wanted[0]) if replaces_first else wanted}


def _check(tx: Tx, field: str, wanted: Sequence[str]) -> None:
    if any(SEGMENT.fullmatch(segment) is None for segment in wanted):
        raise Invalid.field(field, "1 to 64 of A-Z, a-z, 0-9 and . _ ~ -")
    if len(wanted) > MAX_SEGMENTS or len(set(wanted)) < len(wanted):
        raise Invalid.field(field, f"at most {MAX_SEGMENTS}, each once")
    for segment in wanted:
        if not tx.scalar(_IS_KNOWN, {"tenant": tx.tenant, "segment": segment}):
            ceilings.require(tx, Ceiling.SEGMENTS, count)


def _with_others(first: str) -> TextClause:
    """The new first segment, and the others that the user has."""
    others = "array_remove(array_remove(segments[2:], segment), CAST(:first AS text))"
    kept = f"CASE WHEN segment IS NULL THEN '{{}}' ELSE {others} END"
    return text(f"ARRAY[CAST(:first AS text)] || {kept}").bindparams(first=first)


# One question for each place, so that each is answered by its index.
_IN_A_PLACE = (f"EXISTS (SELECT FROM users WHERE tenant_id = :tenant AND {column} = :segment)" for column in COLUMNS)
_IS_KNOWN = text(f"""
    SELECT EXISTS (SELECT FROM boards WHERE tenant_id = :tenant AND scope = 'users:' || :segment)
        OR {" OR ".join(_IN_A_PLACE)}
""")  # noqa: S608  our own names
_COUNT = ceilings.count_values("users", COLUMNS, scope="users:")
