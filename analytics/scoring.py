"""The composite score of a page. Pure.

    score = likes_weight * likes + views_weight * ln(1 + views)

Likes enter linearly; views are damped, so that a page that is merely opened often does not outrank one that people
like. Rounded to 6 decimals.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

DECIMALS = 6
FORMULA = "likes_weight * likes + views_weight * ln(1 + views)"


@dataclass(frozen=True)
class Weights:
    likes: float = 3.0
    views: float = 1.0
    version: int = 0


def score(weights: Weights, *, likes: int, views: int) -> float:
    return round(weights.likes * likes + weights.views * math.log(1 + views), DECIMALS)


def score_of(weights: Weights, counts: Mapping[str, int]) -> float:
    """The score as the table of metrics computes it: from a page's counts by metric name."""
    return score(weights, likes=counts["likes"], views=counts["views"])


def score_sql(*, likes: str, views: str) -> str:
    """The same in SQL, from two columns and the parameters `likes_weight` and `views_weight`."""
    exact = f"CAST(:likes_weight AS float8) * {likes} + CAST(:views_weight AS float8) * ln(1 + {views})"
    return f"round(({exact})::numeric, {DECIMALS})::float8"


def explain(weights: Weights, *, likes: int, views: int) -> dict[str, Any]:
    """The formula with a page's counts filled in."""
    return {
        "formula": FORMULA,
        "weights_version": weights.version,
        "likes": {"count": likes, "weight": weights.likes, "points": round(weights.likes * likes, DECIMALS)},
        "views": {
            "count": views,
            "weight": weights.views,
            "points": round(weights.views * math.log(1 + views), DECIMALS),
        },
        "score": score(weights, likes=likes, views=views),
    }
