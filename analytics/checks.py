"""`plaudit check`: whether everything of a tenant adds up, from the boards to the quests.

One function for each part, whose names `plaudit check --only` takes.
"""

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime

from analytics.boards import checking as boards
from analytics.boards import user_numbers
from analytics.boards.checking import Report
from analytics.comparing import MAX_WALK_S, PAGES, USERS, Chunk, Compared, Found, Walk, Watch, unwatched
from analytics.ingest import unknown_addresses, visitors
from analytics.quests import checking as quests
from tenants import across
from tenants.db import Tx

# The part that is of all tenants together.
GLOBAL = "global"


def check(tenant_id: str, *, now: datetime) -> Report:
    """Compare everything of one tenant."""
    return check_tenants([tenant_id], PARTS, now=lambda: now)


def check_tenants(
    tenant_ids: Collection[str],
    parts: Collection[str],
    *,
    now: Callable[[], datetime],
    max_s: float = MAX_WALK_S,
    watching: Callable[[str], Watch] = lambda _: unwatched,
) -> Report:
    """Compare these parts of these tenants, each part of a tenant in chunks. Raises CheckStopped after `max_s`.

    `watching` names a tenant to the observer of its progress.
    """
    report, ends_at = Report(), time.monotonic() + max_s
    walks = [Walk(tenant_id, now(), ends_at, watching(tenant_id)) for tenant_id in tenant_ids]
    for walk in walks:
        for name, compare in PARTS.items():
            if name in parts:
                compare(walk, report)
    if GLOBAL in parts:
        leaving = [Walk(tenant_id, now(), ends_at) for tenant_id in across.deleted_tenants()]
        boards.check_global([*walks, *leaving], report)
    return report


def _check_profiles(walk: Walk, report: Report) -> None:
    report.add(walk.tenant_id, walk.over("profiles", USERS, _comparing(user_numbers.differences)))


def _check_quests(walk: Walk, report: Report) -> None:
    report.add(walk.tenant_id, walk.over("quests", USERS, _comparing(quests.wrong_counts)))
    report.add(walk.tenant_id, walk.over("quests", quests.QUESTS, _comparing(quests.wrong_payments)))


def _check_addresses(walk: Walk, report: Report) -> None:
    report.add(walk.tenant_id, walk.once("addresses", unknown_addresses.differences))


def _check_visitors(walk: Walk, report: Report) -> None:
    report.add(walk.tenant_id, walk.over("visitors", PAGES, _comparing(visitors.differences)))


def _comparing(differences: Callable[[Tx, Chunk], Iterable[Found]]) -> Callable[[Tx, Chunk], Compared]:
    return lambda tx, chunk: Compared(list(differences(tx, chunk)))


PARTS: Mapping[str, Callable[[Walk, Report], None]] = {
    "pages": boards.check_pages,
    "users": boards.check_users,
    "profiles": _check_profiles,
    "quests": _check_quests,
    "addresses": _check_addresses,
    "visitors": _check_visitors,
}
