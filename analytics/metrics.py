"""Metrics: what pages and users are ranked by. Pure."""

from enum import StrEnum

from analytics.windows import Window

Value = int | float


class Metric(StrEnum):
    LIKES = "likes"
    VIEWS = "views"
    SCORE = "score"
    POINTS = "points"


PAGE_METRICS = (Metric.LIKES, Metric.VIEWS, Metric.SCORE)
# What there is a number of for each page, in the order in which everything here lists them; and for each user.
CELLS: tuple[tuple[Metric, Window], ...] = tuple((metric, window) for metric in PAGE_METRICS for window in Window)
USER_CELLS: tuple[tuple[Metric, Window], ...] = tuple((Metric.POINTS, window) for window in Window)
NOTHING: tuple[Value, ...] = (0,) * len(CELLS)
