"""What is to be written to which boards, by how pages and users were and are. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from analytics.boards import user_numbers
from analytics.boards.names import ALL_TENANTS, Board, boards_in, summary_key
from analytics.boards.page_numbers import Page, Rolled
from analytics.metrics import NOTHING, USER_CELLS, Value


@dataclass
class Changes:
    """What is to become of some boards: values to set, members to remove, summaries."""

    values: dict[Board, dict[str, Value]] = field(default_factory=dict)
    removed: dict[Board, list[str]] = field(default_factory=dict)
    touched: set[Board] = field(default_factory=set)
    # On user boards: user → member and value; None: not on it.
    places: dict[Board, dict[str, tuple[str, Value] | None]] = field(default_factory=dict)
    summaries: dict[str, Mapping[str, str] | None] = field(default_factory=dict)

    def place(self, board: Board, member: str, value: Value) -> None:
        """A value of 0 is on no board."""
        if value:
            self.values.setdefault(board, {})[member] = value
        else:
            self.removed.setdefault(board, []).append(member)

    def boards(self) -> set[Board]:
        return self.values.keys() | self.removed.keys() | self.touched | self.places.keys()

    def __bool__(self) -> bool:
        return bool(self.boards() or self.summaries)


def of_pages(tenant_id: str, rolled: Sequence[Rolled], unsure: Mapping[str, Sequence[str]]) -> Changes:
    """What differs; or everything, in every scope they may be in, for the members that are `unsure`."""
    gathering = _Gathering(tenant_id)
    for page in rolled:
        if str(page.page_id) in unsure:
            gathering.everything(page, unsure[str(page.page_id)])
        else:
            gathering.what_differs(page)
    return gathering.changes


def of_users(tenant_id: str, rolled: Sequence[user_numbers.Rolled], unsure: Mapping[str, Sequence[str]]) -> Changes:
    """The same for users. Where they were before Redis itself knows; only where is to be said."""
    changes = Changes()
    for user in rolled:
        scopes = {scope for state in (user.before, user.now) if state is not None for scope in state.scopes}
        everything = user.user_id in unsure
        for scope in {*scopes, *unsure.get(user.user_id, ())}:
            before, now = _places(user.before, scope), _places(user.now, scope)
            for board, was, place in zip(boards_in(tenant_id, scope), before, now, strict=True):
                if everything or was != place:
                    changes.places.setdefault(board, {})[user.user_id] = place
    return changes


def _places(standing: user_numbers.Standing | None, scope: str) -> Sequence[tuple[str, Value] | None]:
    return standing.places if standing is not None and scope in standing.scopes else (None,) * len(USER_CELLS)


class _Gathering:
    def __init__(self, tenant_id: str) -> None:
        self.changes = Changes()
        self._tenant_id = tenant_id
        self._boards: dict[str, list[Board]] = {}

    def everything(self, page: Rolled, scopes: Sequence[str]) -> None:
        member = str(page.page_id)
        for scope in {*scopes, *_scopes(page.before), *_scopes(page.now)}:
            for board, value in zip(self._boards_in(scope), _values(page.now, scope), strict=True):
                self.changes.place(board, member, value)
        self._summarise(page, everywhere=True)

    def what_differs(self, page: Rolled) -> None:
        member = str(page.page_id)
        renamed = page.before is not None and page.now is not None and page.before.updated_at != page.now.updated_at
        for scope in {*_scopes(page.before), *_scopes(page.now)}:
            before, now = _values(page.before, scope), _values(page.now, scope)
            if before == now and not renamed:
                continue
            for board, was, value in zip(self._boards_in(scope), before, now, strict=True):
                if was != value:
                    self.changes.place(board, member, value)
                elif renamed and value:
                    self.changes.touched.add(board)
        self._summarise(page, everywhere=False)

    def _summarise(self, page: Rolled, *, everywhere: bool) -> None:
        """What a row shows of the page: with its own tenant's boards, and with the global ones if it is there."""
        was, now = page.before, page.now
        shown = page.summary.fields() if now is not None and page.summary is not None else None
        renamed = was is not None and now is not None and was.updated_at != now.updated_at
        if everywhere or renamed or (was is None) != (now is None):
            self.changes.summaries[summary_key(self._tenant_id, str(page.page_id))] = shown
        was_shared, is_shared = was is not None and was.is_shared, now is not None and now.is_shared
        if everywhere or was_shared or is_shared:
            name = summary_key(ALL_TENANTS, str(page.page_id))
            self.changes.summaries[name] = shown if is_shared else None

    def _boards_in(self, scope: str) -> list[Board]:
        if scope not in self._boards:
            self._boards[scope] = boards_in(self._tenant_id, scope)
        return self._boards[scope]


def _scopes(page: Page | None) -> Sequence[str]:
    return page.scopes if page is not None else ()


def _values(page: Page | None, scope: str) -> tuple[Value, ...]:
    return page.values if page is not None and scope in page.scopes else NOTHING
