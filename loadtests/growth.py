"""What a request costs as things grow: pages of a tenant, tenants of a service, connections to it.

All sizes are in one service and are measured in turn, so that they differ in nothing else.
"""

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isnan

from loadtests import dataset, generator, operations
from loadtests.dataset import DataSet
from loadtests.figures import Spread
from loadtests.generator import Sample
from loadtests.operations import TOP, send
from loadtests.pools import UNIQUE, Pool
from loadtests.rounds import Report
from loadtests.target import Target, running_target

ROUNDS = 3
# From the second size to the largest: how much more a request may cost.
AT_MOST, AIM = 1.3, 1.1
PAGE_OPERATIONS = ("top10", "rank-many", "stats", "view", "like")
CONNECTIONS = (1, 4, 16, 64, 256)
CONNECTION_OPERATIONS = ("top10", "rank-many", "view", "like")
VIEWS = "/api/v1/pages/p{:06d}/views"
TENANT_POOL = 2_000
TENANTS = (1, 10, 100, 1_000)


@dataclass(frozen=True)
class Growth:
    """Requests per second of some operations at each size."""

    name: str
    sizes: Sequence[int]
    per_second: Mapping[str, Sequence[Spread]]
    # The place of the size that the largest is compared with.
    base: int = 0

    def cost(self, operation: str) -> float:
        """How much more a request costs at the largest size."""
        rates = self.per_second[operation]
        return rates[self.base].median / rates[-1].median

    def as_json(self) -> dict[str, object]:
        return {
            "sizes": list(self.sizes),
            "per_second": {name: [spread.as_json() for spread in rates] for name, rates in self.per_second.items()},
            "cost": {name: None if isnan(cost := self.cost(name)) else round(cost, 3) for name in self.per_second},
        }


Measure = Callable[[int, str], Sample]


def by_pages(seconds: float, report: Report) -> Growth:
    sizes = list(dataset.PAGES_OF.values())
    with running_target(dataset.BY_PAGES) as target:
        targets = {
            tenant.pages: replace(target, data=DataSet(tenant.id, [tenant])) for tenant in dataset.BY_PAGES.tenants
        }

        def measure(size: int, name: str) -> Sample:
            return _measure(targets[size], operations.BY_NAME[name].pool, seconds)

        return _in_turn("pages", sizes, PAGE_OPERATIONS, measure, report, base=1)


def by_connections(target: Target, seconds: float, report: Report) -> Growth:
    def measure(connections: int, name: str) -> Sample:
        return _measure(target, operations.BY_NAME[name].pool, seconds, connections=connections)

    return _in_turn("connections", CONNECTIONS, CONNECTION_OPERATIONS, measure, report, base=2)


def by_tenants(seconds: float, report: Report) -> Growth:
    pages = dataset.BY_TENANTS.tenants[0].pages
    makers: dict[str, Callable[[str, int], bytes]] = {
        "top10": lambda token, _: send("GET", TOP.format("7d", "score"), token),
        "view": lambda token, page: send("POST", VIEWS.format(page), token, {"id": f"{uuid.uuid4().hex}-{UNIQUE}"}),
    }
    with running_target(dataset.BY_TENANTS) as target:
        ids = [tenant.id for tenant in dataset.BY_TENANTS.tenants]

        def measure(tenants: int, name: str) -> Sample:
            tokens = target.client_tokens(ids[:tenants])
            pool = Pool([makers[name](tokens[n % tenants], n // tenants % pages) for n in range(TENANT_POOL)])
            return _measure(target, lambda _: pool, seconds)

        return _in_turn("tenants", TENANTS, list(makers), measure, report)


def _measure(
    target: Target, pool: Callable[[Target], Pool], seconds: float, *, connections: int = generator.CONNECTIONS
) -> Sample:
    target.measurement += 1
    sample = generator.measure(target.port, pool(target), seconds=seconds, connections=connections)
    target.wait_until_idle()
    return sample


def _in_turn(
    name: str, sizes: Sequence[int], names: Sequence[str], measure: Measure, report: Report, *, base: int = 0
) -> Growth:
    measured: dict[tuple[str, int], list[float]] = {}
    for number in range(-1, ROUNDS):  # the first is a warm-up
        for operation in names:
            for size in sizes:
                report(f"{name}: {operation} at {size:,}")
                sample = measure(size, operation)
                if number >= 0:
                    rate = sample.per_second if sample.is_valid else float("nan")
                    measured.setdefault((operation, size), []).append(rate)
    per_second = {operation: [Spread.of(measured[operation, size]) for size in sizes] for operation in names}
    return Growth(name, sizes, per_second, base)
