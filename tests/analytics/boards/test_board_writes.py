"""What is to be written to which boards: only what differs, or everything that Redis may have."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from analytics.boards.board_writes import for_pages, for_users
from analytics.boards.names import ALL_TENANTS, Board
from analytics.boards.page_numbers import ALL_ZERO, COLUMNS, PageChange, PageNumbers
from analytics.boards.summaries import Summary, summary_key
from analytics.boards.user_numbers import UserChange, UserNumbers
from analytics.metrics import POINTS, VIEWS, Value
from analytics.windows import Window

NOW = datetime(2026, 3, 10, tzinfo=UTC)
SUMMARY = Summary("home", "Home", "/home", "eng", "demo", is_public=False)


def page(**values: Value) -> PageNumbers:
    numbers = dict(zip(COLUMNS, ALL_ZERO, strict=True)) | values
    return PageNumbers("eng", is_public=False, is_shared=False, updated_at=NOW, values=tuple(numbers.values()))


def change(before: PageNumbers | None, now: PageNumbers | None) -> PageChange:
    return PageChange(7, before, now, SUMMARY)


def views_board(scope: str, window: Window = Window.WEEK) -> Board:
    return Board(ALL_TENANTS if scope == "global" else "demo", scope, window, VIEWS)


def test_a_page_without_a_change_writes_nothing() -> None:
    assert not for_pages("demo", [change(page(views_7d=2), page(views_7d=2))], {})


def test_only_the_boards_whose_value_differs_are_written() -> None:
    writes = for_pages("demo", [change(page(views_7d=2, likes_7d=1), page(views_7d=3, likes_7d=1))], {})
    assert writes.values == {views_board(scope): {"7": 3} for scope in ("tenant", "space:eng")}
    assert (writes.removed, writes.summaries) == ({}, {})


def test_a_value_of_zero_is_removed() -> None:
    writes = for_pages("demo", [change(page(views_7d=2, views_all=2), page(views_all=2))], {})
    assert writes.removed == {views_board(scope): ["7"] for scope in ("tenant", "space:eng")}
    assert writes.values == {}


def test_a_page_that_moves_is_removed_from_its_old_scopes_and_added_to_the_new_ones() -> None:
    before = page(views_7d=2)
    writes = for_pages("demo", [change(before, replace(before, space="ops", is_public=True, is_shared=True))], {})
    assert writes.removed == {views_board("space:eng"): ["7"]}
    assert writes.values == {views_board(s): {"7": 2} for s in ("space:ops", "public", "public:ops", "global")}
    assert writes.summaries == {summary_key(ALL_TENANTS, "7"): SUMMARY.fields()}


def test_a_renamed_page_touches_its_boards_and_has_a_new_summary() -> None:
    before = page(views_7d=2)
    writes = for_pages("demo", [change(before, replace(before, updated_at=NOW + timedelta(seconds=1)))], {})
    assert writes.touched == writes.boards() == {views_board(scope) for scope in ("tenant", "space:eng")}
    assert writes.summaries == {summary_key("demo", "7"): SUMMARY.fields()}


def test_a_deleted_page_is_removed_with_its_summary() -> None:
    writes = for_pages("demo", [change(page(views_7d=2), None)], {})
    assert writes.removed == {views_board(scope): ["7"] for scope in ("tenant", "space:eng")}
    assert writes.summaries == {summary_key("demo", "7"): None}


def test_of_an_unsure_page_everything_is_written_in_every_scope_that_redis_may_have() -> None:
    same = change(page(views_7d=2), page(views_7d=2))
    writes = for_pages("demo", [same], {"7": ["public"]})
    assert {scope: writes.values[views_board(scope)] for scope in ("tenant", "space:eng")} == {
        "tenant": {"7": 2},
        "space:eng": {"7": 2},
    }
    assert writes.removed[views_board("public")] == ["7"]
    assert len(writes.boards()) == 3 * len(COLUMNS)
    assert writes.summaries == {summary_key("demo", "7"): SUMMARY.fields(), summary_key(ALL_TENANTS, "7"): None}


def user(segments: str, *values: Value, renamed_at: datetime | None = None) -> UserNumbers:
    return UserNumbers(tuple(segments.split()), values, tuple(f"{value}:ada" for value in values), renamed_at)


def test_of_a_user_the_new_entry_is_written_where_it_differs() -> None:
    def board(scope: str, window: Window) -> Board:
        return Board("demo", scope, window, POINTS)

    moved = UserChange("ada", POINTS, before=user("north", 0, 5, 5, 5), now=user("south", 0, 0, 5, 6))
    expected: dict[Board, dict[str, tuple[str, Value] | None]] = {
        board("users", Window.WEEK): {"ada": None},
        board("users", Window.ALL): {"ada": ("6:ada", 6)},
        **{board("users:north", window): {"ada": None} for window in (Window.WEEK, Window.MONTH, Window.ALL)},
        board("users:south", Window.MONTH): {"ada": ("5:ada", 5)},
        board("users:south", Window.ALL): {"ada": ("6:ada", 6)},
    }
    assert for_users("demo", [moved], {}).users == expected
    same = UserChange("ada", POINTS, before=user("", 0, 0, 0, 6), now=user("", 0, 0, 0, 6))
    assert for_users("demo", [same], {}).users == {}
    unsure = for_users("demo", [same], {"ada": ["users:west"]}).users
    assert unsure[board("users", Window.ALL)] == {"ada": ("6:ada", 6)}
    assert unsure[board("users:west", Window.ALL)] == {"ada": None}
    assert len(unsure) == 2 * len(Window)
    left = UserChange("ada", POINTS, before=user("north pro", 0, 0, 5, 5), now=user("pro", 0, 0, 5, 5))
    gone = {board("users:north", window): {"ada": None} for window in (Window.MONTH, Window.ALL)}
    assert for_users("demo", [left], {}).users == gone, "and not from the other segment"


def test_boards_that_show_a_renamed_user_get_another_version() -> None:
    old, new = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)
    renamed = UserChange(
        "ada",
        POINTS,
        before=user("pro", 0, 0, 5, 5, renamed_at=old),
        now=user("pro", 0, 0, 5, 6, renamed_at=new),
    )
    writes = for_users("demo", [renamed], {})
    shown = {Board("demo", scope, Window.MONTH, POINTS) for scope in ("users", "users:pro")}
    assert writes.touched == shown
    assert writes.users.keys() == {Board("demo", scope, Window.ALL, POINTS) for scope in ("users", "users:pro")}
