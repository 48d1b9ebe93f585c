"""Lists in slices: which rows a request asks for, and the answer with the cursor of the next slice."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.http import cursors

# Rows in one answer.
MAX_SLICE = 100


@dataclass(frozen=True)
class Slice:
    """`limit` rows of a list, after the position of its cursor; from the start if `after` is None.

    A position is the values of the `keys` of a row, by which the list is ordered.
    """

    keys: tuple[str, ...]
    limit: int
    after: Any

    @property
    def fetch(self) -> int:
        """How many rows to read: one more than is shown, to see whether there are more."""
        return self.limit + 1

    def answer(
        self, rows: Sequence[Any], *, show: Callable[[Sequence[Any]], Sequence[Any]] | None = None
    ) -> dict[str, Any]:
        """`rows` are the (at most `fetch`) rows that were read; `show` turns those of the slice into its items."""
        shown = rows[: self.limit]
        has_more = len(rows) > len(shown)
        return {
            "items": show(shown) if show is not None else shown,
            "next_cursor": cursors.encode(*(getattr(shown[-1], key) for key in self.keys)) if has_more else None,
        }


def slice_of(query: Mapping[str, Any], **keys: type) -> Slice:
    """The slice that a query of `SliceIn` requests, of a list ordered by these attributes of these types."""
    after: Any = None
    if query.get("cursor"):
        position = cursors.decode(query["cursor"], *keys.values())
        after = position[0] if len(position) == 1 else position
    return Slice(tuple(keys), query["limit"], after)
