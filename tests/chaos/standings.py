"""What each board must show, computed from the rows of PostgreSQL. Pure, and without any of the service's code.

Users of equal value are ordered by who reached it first, to the millisecond, and pages by their id as text,
the last first.
"""

import math
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from typing import Any

WEIGHT_OF_LIKES, WEIGHT_OF_VIEWS = 3.0, 1.0

Row = tuple[str, float]


def rows_of(final: dict[str, Any], topic: str, at: datetime) -> list[Row]:
    """The rows of a board at this time."""
    scope, window, metric = topic.rsplit(":", 2)
    start = _start(window, at)
    if scope.partition(":")[0] == "users":
        return _users(final, scope.partition(":")[2], metric, start)
    return _pages(final, scope, metric, start)


def _start(window: str, at: datetime) -> datetime:
    """The beginning of the first hour in the window."""
    if window == "all":
        return datetime.min.replace(tzinfo=UTC)
    hour = at.replace(minute=0, second=0, microsecond=0)
    return hour - timedelta(days=int(window.removesuffix("d"))) + timedelta(hours=1)


def _pages(final: dict[str, Any], scope: str, metric: str, start: datetime) -> list[Row]:
    views: dict[str, int] = defaultdict(int)
    visitors: dict[str, int] = defaultdict(int)
    likes: dict[str, int] = defaultdict(int)
    for row in final["views"]:
        if datetime.fromisoformat(row["hour"]) >= start:
            views[row["page"]] += row["views"]
            visitors[row["page"]] += row["visitors"]
    for row in final["likes"]:
        if datetime.fromisoformat(row["at"]) >= start:
            likes[row["page"]] += 1
    ranked: list[tuple[float, str, str]] = []
    for page in final["pages"]:
        name = page["page"]
        if not _is_in(page, scope):
            continue
        value = {
            "views": float(views[name]),
            "visitors": float(visitors[name]),
            "likes": float(likes[name]),
            "score": WEIGHT_OF_LIKES * likes[name] + WEIGHT_OF_VIEWS * math.log1p(views[name]),
        }[metric]
        if value > 0:
            ranked.append((value, str(page["id"]), name))
    return [(name, value) for value, _, name in sorted(ranked, reverse=True)]


def _is_in(page: dict[str, Any], scope: str) -> bool:
    kind, _, space = scope.partition(":")
    return kind == "tenant" or (page["visibility"] == "public" if kind == "public" else page["space"] == space)


def _users(final: dict[str, Any], segment: str, metric: str, start: datetime) -> list[Row]:
    totals: dict[str, int] = defaultdict(int)
    reached_ms: dict[str, int] = defaultdict(int)
    for entry in final["ledger"]:
        if entry["account"] == metric and datetime.fromisoformat(entry["at"]) >= start:
            totals[entry["user_id"]] += entry["delta"]
            at_ms = int(datetime.fromisoformat(entry["at"]).timestamp() * 1000 + 0.5)
            reached_ms[entry["user_id"]] = max(reached_ms[entry["user_id"]], at_ms)
    ranked = [
        (-totals[user["id"]], reached_ms[user["id"]], user["id"], user["name"])
        for user in final["users"]
        if totals[user["id"]] > 0
        and not user["suspended"]
        and not user["erased"]
        and (not segment or segment in (user["segments"] or []))
    ]
    return [(name, float(-value)) for value, _, _, name in sorted(ranked)]
