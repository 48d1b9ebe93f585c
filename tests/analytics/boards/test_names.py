"""Boards by name: the keys that are stored in Redis, and which names exist."""

from datetime import UTC, datetime

import pytest

from analytics.boards.names import (
    ALL_TENANTS,
    GLOBAL,
    Board,
    UnknownMetric,
    UnknownScope,
    Version,
    board_of,
    boards_in,
    page_scopes,
    user_scopes,
)
from analytics.metrics import POINTS, SCORE, VIEWS, page_metrics, user_metrics
from analytics.windows import Window


def test_the_keys_of_a_board_carry_its_tenant_and_share_a_hash_tag() -> None:
    board = Board("demo", "space:eng", Window.WEEK, VIEWS)
    assert board.topic == "space:eng:7d:views"
    assert board.key == "lb:demo:space:eng:7d:views"
    assert (board.marker, board.lookup) == (f"lbv:{{{board.key}}}", f"lbu:{{{board.key}}}")


@pytest.mark.parametrize(
    ("scope", "scope_key", "is_users", "is_public", "is_global"),
    [
        ("tenant", None, False, False, False),
        ("space:eng", "eng", False, False, False),
        ("public", None, False, True, False),
        ("public:eng", "eng", False, True, False),
        ("global", None, False, True, True),
        ("users", None, True, False, False),
        ("users:north", "north", True, False, False),
    ],
)
def test_a_scope_says_what_a_board_ranks(
    scope: str, scope_key: str | None, is_users: bool, is_public: bool, is_global: bool
) -> None:
    board = board_of("demo", scope, Window.WEEK, None)
    assert (board.scope_key, board.is_users, board.is_public, board.is_global) == (
        scope_key,
        is_users,
        is_public,
        is_global,
    )
    assert board.tenant_id == (ALL_TENANTS if is_global else "demo")
    assert board.metric is (POINTS if is_users else SCORE), "the usual metric of the scope"


@pytest.mark.parametrize("scope", ["", "Tenant", "tenant:", "space", "space:", "space:a b", "global:x", "users:a:b"])
def test_another_scope_is_unknown(scope: str) -> None:
    with pytest.raises(UnknownScope):
        board_of("demo", scope, Window.WEEK, None)


@pytest.mark.parametrize(
    ("scope", "metric"), [("tenant", "points"), ("users", "views"), ("tenant", "x"), ("users", "")]
)
def test_a_metric_of_the_other_kind_is_unknown(scope: str, metric: str) -> None:
    with pytest.raises(UnknownMetric, match="points, xp or reputation for users"):
        board_of("demo", scope, Window.WEEK, metric)


def test_a_scope_has_a_board_for_each_of_its_metrics_and_windows() -> None:
    for scope, metrics in (("tenant", page_metrics()), ("users", tuple(user_metrics()))):
        boards = boards_in("demo", scope)
        assert {(board.metric, board.window) for board in boards} == {(m, w) for m in metrics for w in Window}
        assert {board.tenant_id for board in boards} == {"demo"}
    assert {board.tenant_id for board in boards_in("demo", GLOBAL)} == {ALL_TENANTS}


def test_a_page_and_a_user_are_in_these_scopes() -> None:
    assert page_scopes("eng", is_public=False, is_shared=False) == ["tenant", "space:eng"]
    public = ["tenant", "space:eng", "public", "public:eng"]
    assert page_scopes("eng", is_public=True, is_shared=False) == public
    assert page_scopes("eng", is_public=True, is_shared=True) == [*public, "global"]
    assert page_scopes("eng", is_public=False, is_shared=True) == ["tenant", "space:eng"], (
        "a private page is not shared"
    )
    assert (user_scopes(()), user_scopes(["north", "pro"])) == (["users"], ["users", "users:north", "users:pro"])


def test_a_version_survives_redis() -> None:
    version = Version(12, datetime(2026, 3, 10, 12, 30, 1, 5, tzinfo=UTC))
    assert Version.load(version.dump().encode()) == Version.load(version.dump()) == version
