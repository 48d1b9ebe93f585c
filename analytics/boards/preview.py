"""What new weights would do to a board, before they apply."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import text

from analytics.boards.names import Board
from analytics.boards.page_numbers import column
from analytics.metrics import Metric
from analytics.scoring import Weights
from tenants.db import Tx


@dataclass(frozen=True)
class Move:
    """Where a page is, and where it would be."""

    member: str
    rank: int
    score: float
    rank_now: int | None
    score_now: float


def of_board(tx: Tx, board: Board, weights: Weights, *, limit: int) -> tuple[list[Move], int]:
    """The first rows of a score board under other weights, and how many of all its rows would have another rank."""
    likes, views = (f"s.{column(metric, board.window)}" for metric in (Metric.LIKES, Metric.VIEWS))
    where = ["s.tenant_id = :tenant"]
    if board.part is not None:
        where.append("s.space_key = :space")
    if board.is_public:
        where.append("s.is_public")
    parameters: dict[str, Any] = {"tenant": board.tenant_id, "space": board.part, "limit": limit}
    rows = tx.execute(
        text(f"""
            WITH scored AS (
                SELECT s.page_id, s.{column(Metric.SCORE, board.window)} AS was,
                       round((CAST(:likes AS float8) * {likes} + CAST(:views AS float8) * ln(1 + {views}))::numeric, 6)
                       ::float8 AS score
                FROM page_stats s WHERE {" AND ".join(where)}
            ), ranked AS (
                SELECT page_id, was, score, score > 0 AS is_on,
                       row_number() OVER (ORDER BY score DESC, page_id::text COLLATE "C" DESC) AS rank,
                       CASE WHEN was > 0 THEN
                           row_number() OVER (ORDER BY was DESC, page_id::text COLLATE "C" DESC) END AS rank_now
                FROM scored WHERE score > 0 OR was > 0
            )
            SELECT r.*, count(*) FILTER (WHERE (rank, is_on) IS DISTINCT FROM (rank_now, true)) OVER () AS moved
            FROM ranked r ORDER BY rank LIMIT :limit
        """),  # noqa: S608  names of ours
        {**parameters, "likes": weights.likes, "views": weights.views},
    ).all()
    moves = [Move(str(row.page_id), row.rank, row.score, row.rank_now, row.was) for row in rows if row.is_on]
    return moves, rows[0].moved if rows else 0
