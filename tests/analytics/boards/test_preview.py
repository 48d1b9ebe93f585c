"""A preview of other weights: ranks then and now, without saving anything."""

from analytics.boards import preview
from analytics.boards.names import Board
from analytics.metrics import SCORE
from analytics.scoring import Weights, score
from analytics.windows import Window
from tenants.db import tenant_tx
from tests.analytics.boards.conftest import save_page_numbers
from tests.analytics.conftest import put_page

COUNTS = {"viewed": (0, 20), "liked": (2, 0), "both": (1, 1), "idle": (0, 0)}


def test_rows_have_the_rank_and_score_of_the_other_weights_and_the_present_ones(tenant: str) -> None:
    now, other = Weights(likes=3, views=1), Weights(likes=0, views=2)
    ids = {}
    for name, (likes, views) in COUNTS.items():
        ids[name] = put_page(tenant, name)
        score_now = score(now, likes=likes, views=views)
        save_page_numbers(tenant, ids[name], likes_7d=likes, views_7d=views, score_7d=score_now, views_all=1)
    board = Board(tenant, "tenant", Window.WEEK, SCORE)
    with tenant_tx(tenant) as tx:
        moves, moved = preview.of_board(tx, board, other, limit=10)
        first, _ = preview.of_board(tx, board, other, limit=1)
    names = {str(page_id): name for name, page_id in ids.items()}
    assert [(names[move.page_id], move.rank, move.rank_now) for move in moves] == [("viewed", 1, 3), ("both", 2, 2)]
    assert [(move.score, move.score_now) for move in moves] == [
        (score(other, likes=likes, views=views), score(now, likes=likes, views=views))
        for likes, views in (COUNTS["viewed"], COUNTS["both"])
    ]
    assert moved == 2, "the liked one would leave the board"
    assert first == moves[:1]


def test_an_empty_board_has_no_moves(tenant: str) -> None:
    with tenant_tx(tenant) as tx:
        assert preview.of_board(tx, Board(tenant, "tenant", Window.WEEK, SCORE), Weights(), limit=9) == ([], 0)
