"""What is to be written to which boards, from how pages and users were and are. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from analytics.boards.names import ALL_TENANTS, Board, boards_in
from analytics.boards.page_numbers import ALL_ZERO, PageChange, PageNumbers
from analytics.boards.summaries import summary_key
from analytics.boards.user_numbers import UserChange, UserNumbers
from analytics.metrics import Value
from analytics.windows import Window

# Members that Redis may have any value of → the scopes in which it may.
Unsure = Mapping[str, Sequence[str]]


@dataclass
class BoardWrites:
    """Values to set, members to remove, summaries."""

    values: dict[Board, dict[str, Value]] = field(default_factory=dict)
    removed: dict[Board, list[str]] = field(default_factory=dict)
    # Boards whose rows show something new although no value changed: a page or user was renamed.
    touched: set[Board] = field(default_factory=set)
    # On user boards: user id → member and value; None: not on the board.
    users: dict[Board, dict[str, tuple[str, Value] | None]] = field(default_factory=dict)
    summaries: dict[str, Mapping[str, str] | None] = field(default_factory=dict)

    def set_page(self, board: Board, member: str, value: Value) -> None:
        """A page with a value of 0 is not on the board."""
        if value:
            self.values.setdefault(board, {})[member] = value
        else:
            self.removed.setdefault(board, []).append(member)

    def boards(self) -> set[Board]:
        return self.values.keys() | self.removed.keys() | self.touched | self.users.keys()

    def __bool__(self) -> bool:
        return bool(self.boards() or self.summaries)


def for_pages(tenant_id: str, changes: Sequence[PageChange], unsure: Unsure) -> BoardWrites:
    """What differs; or everything, in every scope they may be in, for the pages that are `unsure`."""
    collector = _PageWrites(tenant_id)
    for change in changes:
        if change.member in unsure:
            collector.add_all(change, unsure[change.member])
        else:
            collector.add_differences(change)
    return collector.writes


def for_users(tenant_id: str, changes: Sequence[UserChange], unsure: Unsure) -> BoardWrites:
    """The same for users. Redis knows which member a user had, so only the new one is written."""
    writes = BoardWrites()
    for change in changes:
        is_unsure = change.user_id in unsure
        for scope in {*_scopes(change.before), *_scopes(change.now), *unsure.get(change.user_id, ())}:
            boards = [board for board in boards_in(tenant_id, scope) if board.metric is change.metric]
            before, now = _entries(change.before, scope), _entries(change.now, scope)
            for board, old, new in zip(boards, before, now, strict=True):
                if is_unsure or old != new:
                    writes.users.setdefault(board, {})[change.user_id] = new
                elif new is not None and _shows_another_name(change):
                    writes.touched.add(board)
    return writes


class _PageWrites:
    def __init__(self, tenant_id: str) -> None:
        self._tenant_id = tenant_id
        self._touched: set[Board] = set()
        self._summaries: dict[str, Mapping[str, str] | None] = {}
        # Of each scope, by the place of the board in it: the values to set, and the members to remove. Boards are
        # looked up once for each scope, and not for each value of each page.
        self._scopes: dict[str, tuple[list[Board], list[dict[str, Value]], list[list[str]]]] = {}

    @property
    def writes(self) -> BoardWrites:
        writes = BoardWrites(touched=self._touched, summaries=self._summaries)
        for boards, values, removed in self._scopes.values():
            writes.values |= {board: of_board for board, of_board in zip(boards, values, strict=True) if of_board}
            writes.removed |= {board: of_board for board, of_board in zip(boards, removed, strict=True) if of_board}
        return writes

    def add_all(self, change: PageChange, scopes: Sequence[str]) -> None:
        for scope in {*scopes, *_scopes(change.before), *_scopes(change.now)}:
            self._set(scope, change.member, dict(enumerate(_values(change.now, scope))))
        self._add_summaries(change, always=True)

    def add_differences(self, change: PageChange) -> None:
        was_renamed, member = _was_renamed(change), change.member
        before, now = _scopes(change.before), _scopes(change.now)
        if before == now and not was_renamed and change.before is not None and change.now is not None:
            changed = _changed(change.before.values, change.now.values)
            for scope in now if changed else ():
                self._set(scope, member, changed)
        else:
            for scope in {*before, *now}:
                old, new = _values(change.before, scope), _values(change.now, scope)
                changed = _changed(old, new)
                self._set(scope, member, changed)
                if was_renamed:
                    boards = self._of_scope(scope)[0]
                    self._touched.update(
                        boards[place] for place, value in enumerate(new) if value and place not in changed
                    )
        self._add_summaries(change, always=False)

    def _set(self, scope: str, member: str, values: Mapping[int, Value]) -> None:
        """Values of a page by the place of their boards in the scope. With a value of 0 it is not on the board."""
        _, to_set, to_remove = self._of_scope(scope)
        for place, value in values.items():
            if value:
                to_set[place][member] = value
            else:
                to_remove[place].append(member)

    def _of_scope(self, scope: str) -> tuple[list[Board], list[dict[str, Value]], list[list[str]]]:
        if scope not in self._scopes:
            boards = boards_in(self._tenant_id, scope)
            self._scopes[scope] = boards, [{} for _ in boards], [[] for _ in boards]
        return self._scopes[scope]

    def _add_summaries(self, change: PageChange, *, always: bool) -> None:
        """What rows show of the page: on its own tenant's boards, and on the global ones if it is shared."""
        before, now = change.before, change.now
        fields = change.summary.fields() if now is not None and change.summary is not None else None
        if always or _was_renamed(change) or (before is None) != (now is None):
            self._summaries[summary_key(self._tenant_id, change.member)] = fields
        was_shared, is_shared = before is not None and before.is_shared, now is not None and now.is_shared
        if always or was_shared or is_shared:
            self._summaries[summary_key(ALL_TENANTS, change.member)] = fields if is_shared else None


def _changed(before: Sequence[Value], now: Sequence[Value]) -> dict[int, Value]:
    """The new values that differ, by their places."""
    return {place: new for place, (old, new) in enumerate(zip(before, now, strict=True)) if old != new}


def _was_renamed(change: PageChange) -> bool:
    """Whether the page was edited since its numbers were saved."""
    return change.before is not None and change.now is not None and change.before.updated_at != change.now.updated_at


def _shows_another_name(change: UserChange) -> bool:
    """Whether the user's name or picture has changed since their numbers were saved."""
    before, now = change.before, change.now
    return before is not None and now is not None and before.profile_changed_at != now.profile_changed_at


def _scopes(numbers: PageNumbers | UserNumbers | None) -> Sequence[str]:
    return numbers.scopes if numbers is not None else ()


def _values(page: PageNumbers | None, scope: str) -> tuple[Value, ...]:
    return page.values if page is not None and scope in page.scopes else ALL_ZERO


def _entries(user: UserNumbers | None, scope: str) -> Sequence[tuple[str, Value] | None]:
    return user.entries if user is not None and scope in user.scopes else (None,) * len(Window)
