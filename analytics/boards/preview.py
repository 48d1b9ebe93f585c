"""What other weights would do to a score board, before they are saved."""

from dataclasses import dataclass

from sqlalchemy import text

from analytics.boards.board_sql import in_scope, scope_parameters
from analytics.boards.names import Board
from analytics.metrics import LIKES, SCORE, VIEWS, column
from analytics.scoring import Weights, score_sql
from tenants.db import Tx


@dataclass(frozen=True)
class Move:
    """A page's rank and score under other weights, and now."""

    page_id: str
    rank: int
    score: float
    rank_now: int | None
    score_now: float


def of_board(tx: Tx, board: Board, weights: Weights, *, limit: int) -> tuple[list[Move], int]:
    """The first rows of a score board under other weights, and how many of all its rows would have another rank."""
    likes, views = (f"s.{column(metric, board.window)}" for metric in (LIKES, VIEWS))
    rows = tx.execute(
        text(f"""
            WITH scored AS (
                SELECT s.page_id, s.{column(SCORE, board.window)} AS score_now,
                       {score_sql(likes=likes, views=views)} AS score
                FROM page_stats s WHERE {in_scope(board)}
            ), ranked AS (
                SELECT page_id, score_now, score, score > 0 AS is_on,
                       row_number() OVER (ORDER BY score DESC, page_id::text COLLATE "C" DESC) AS rank,
                       CASE WHEN score_now > 0 THEN
                           row_number() OVER (ORDER BY score_now DESC, page_id::text COLLATE "C" DESC) END AS rank_now
                FROM scored WHERE score > 0 OR score_now > 0
            )
            SELECT r.*, count(*) FILTER (WHERE (rank, is_on) IS DISTINCT FROM (rank_now, true)) OVER () AS moved
            FROM ranked r ORDER BY rank LIMIT :limit
        """),  # noqa: S608  names from the table of metrics
        {
            **scope_parameters(board),
            "limit": limit,
            "likes_weight": weights.likes,
            "views_weight": weights.views,
        },
    ).all()
    moves = [Move(str(row.page_id), row.rank, row.score, row.rank_now, row.score_now) for row in rows if row.is_on]
    return moves, rows[0].moved if rows else 0
