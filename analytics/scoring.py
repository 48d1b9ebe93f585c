"""The composite score of a page. Pure.

    score = likes_weight * likes + views_weight * ln(1 + views)

Likes count as they are; views are damped, so that a page that is merely opened often does not outrun one that people
like. Rounded to 6 decimals.
"""

import math
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


def explain(weights: Weights, *, likes: int, views: int) -> dict[str, Any]:
    """How a score came about."""
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
