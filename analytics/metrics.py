"""The table of metrics: what pages and users are ranked by. Pure.

Columns, boards, projection, `check`, API enums, the dashboard and the widgets follow from this table: to add a metric,
add an entry here and a migration (see CONTRIBUTING.md).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from analytics import scoring
from analytics.scoring import Weights
from analytics.windows import Window

Value = int | float


@dataclass(frozen=True)
class Counted:
    """A page metric that is counted: rows of a table (tenant_id, page_id, a time), aggregated by a window of time."""

    table: str
    time: str
    aggregate: str
    # Columns of page_counters: the total of all time, and how much of it is in rows that are no longer kept.
    total: str
    purged: str | None = None


@dataclass(frozen=True)
class Computed:
    """A page metric that is computed from the counted ones of the same window, by the tenant's weights."""

    value: Callable[[Weights, Mapping[str, int]], float]


@dataclass(frozen=True)
class Ledger:
    """A user metric: what the user's ledger entries of one account add up to."""

    account: str
    # Columns of users: the total of all time, and when it was reached.
    total: str
    reached_at: str


@dataclass(frozen=True, eq=False)
class Metric:
    name: str
    label: str
    source: Counted | Computed | Ledger
    is_whole: bool = True  # else a number with decimals
    note: str | None = None

    @property
    def is_of_users(self) -> bool:
        return isinstance(self.source, Ledger)

    @property
    def account(self) -> str:
        """The ledger's account that the metric shows."""
        assert isinstance(self.source, Ledger)  # noqa: S101  only of users' metrics
        return self.source.account

    @property
    def sql_type(self) -> str:
        return "bigint" if self.is_whole else "double precision"

    def load(self, value: Any) -> Value:
        """A value as Redis or a snapshot has it (text or a float), in the metric's own type."""
        return int(float(value)) if self.is_whole else float(value)

    def __str__(self) -> str:
        return self.name


METRICS: dict[str, Metric] = {}


@cache
def page_metrics() -> tuple[Metric, ...]:
    return tuple(metric for metric in METRICS.values() if not metric.is_of_users)


@cache
def user_metrics() -> dict[Metric, Ledger]:
    return {metric: metric.source for metric in METRICS.values() if isinstance(metric.source, Ledger)}


@cache
def counted_metrics() -> dict[Metric, Counted]:
    return {metric: metric.source for metric in METRICS.values() if isinstance(metric.source, Counted)}


def column(metric: Metric, window: Window) -> str:
    """The column of page_stats that has this number."""
    return f"{metric}_{window}"


@cache
def page_columns() -> dict[str, tuple[Metric, Window]]:
    """The columns of page_stats that have numbers, in the order in which everything lists them."""
    return {column(metric, window): (metric, window) for metric in page_metrics() for window in Window}


def names_of(metrics: tuple[Metric, ...]) -> str:
    """For messages: `score, views or likes`."""
    *most, last = (metric.name for metric in metrics)
    return f"{', '.join(most)} or {last}" if most else last


def register(metric: Metric) -> Metric:
    """Add a metric to the table: before the modules that follow from it are imported."""
    METRICS[metric.name] = metric
    for derived in (page_metrics, user_metrics, counted_metrics, page_columns):
        derived.cache_clear()
    return metric


# In the order in which people see them.
SCORE = register(
    Metric("score", "Score", Computed(scoring.score_of), is_whole=False, note="by likes and views, weighted")
)
VIEWS = register(
    Metric(
        "views",
        "Views",
        Counted("page_views_hour", "bucket_hour", aggregate="sum(views)", total="views", purged="views_purged"),
    )
)
VISITORS = register(
    Metric(
        "visitors",
        "Visitors",
        Counted(
            "page_views_hour", "bucket_hour", aggregate="sum(visitors)", total="visitors", purged="visitors_purged"
        ),
        note="each once a day",
    )
)
LIKES = register(
    Metric("likes", "Likes", Counted("page_likes", time="liked_at", aggregate="count(liked_at)", total="likes"))
)
POINTS = register(Metric("points", "Points", Ledger("points", total="current_score", reached_at="score_reached_at")))
XP = register(
    Metric("xp", "XP", Ledger("xp", total="experience_points", reached_at="xp_reached_at"), note="by completed quests")
)
REPUTATION = register(
    Metric(
        "reputation",
        "Reputation",
        Ledger("reputation", total="reputation", reached_at="reputation_reached_at"),
        note="by completed quests",
    )
)
