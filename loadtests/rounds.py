"""Measures operations and floors in turn, in several rounds: other work on the machine comes and goes."""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from loadtests import generator, operations
from loadtests.blast import blast
from loadtests.figures import Figure
from loadtests.floors import BARE, bare_server
from loadtests.generator import Sample
from loadtests.operations import FLASK, REDIS, WSGI, Floor, Operation
from loadtests.pools import Pool
from loadtests.steady import Steady
from loadtests.target import Target

# The bare Flask route is measured again after so many operations, so that each has one of about the same moment.
OPERATIONS_PER_FLOOR = 4
# Before the first round, which would otherwise pay for connections, plans and caches.
WARM_UP_S = 1.0
# A batch may take half a second.
MIN_BATCH_S = 2.0
# Around the measurement of an operation that needs changing boards.
BACKGROUND_LEAD_S = 1.0
TITLES = {WSGI: "a bare WSGI function", FLASK: "a bare Flask route (F)"}

# Called before each measurement, with its title.
Report = Callable[[str], None]


class Rounds:
    """The figures of a run, and what they are measured with."""

    def __init__(
        self, target: Target, chosen: Sequence[Operation], *, seconds: float, report: Report, warms_up: bool = True
    ) -> None:
        self.target = target
        self.warms_up = warms_up
        self.chosen = chosen
        self.seconds = seconds
        self.report = report
        self.floors = {name: Figure(name, title) for name, title in TITLES.items()}
        for floor in self._other_floors():
            self.floors[floor.name] = Figure(floor.name, floor.title)
        self.figures = {
            operation.name: Figure(
                operation.name,
                operation.title,
                operation.events,
                operation.floor_name,
                operation.at_least,
                operation.aim,
            )
            for operation in chosen
        }
        self._ports: dict[str, int] = {}

    def measurements_per_round(self) -> int:
        groups = -(-len(self.chosen) // OPERATIONS_PER_FLOOR)
        return 1 + groups + len(self.chosen) + len(self._other_floors())

    def run(self, rounds: int) -> None:
        with ExitStack() as stack:
            for name, attribute in ((WSGI, "function"), (FLASK, "application")):
                self._ports[name] = stack.enter_context(bare_server(attribute))
            if self.warms_up:
                self._warm_up()
            for _ in range(rounds):
                self._round()

    def _warm_up(self) -> None:
        for operation in self.chosen:
            self.report(f"warm-up: {operation.title}")
            self._measure(operation, WARM_UP_S)
        self.target.wait_until_idle()

    def _round(self) -> None:
        self.floors[WSGI].samples.append(self._measure_bare(WSGI))
        if self._has_redis():
            self.floors[REDIS.name].samples.append(self._measure_floor(REDIS))
        for start in range(0, len(self.chosen), OPERATIONS_PER_FLOOR):
            flask = self._measure_bare(FLASK)
            self.floors[FLASK].samples.append(flask)
            for operation in self.chosen[start : start + OPERATIONS_PER_FLOOR]:
                self._measure_with_floor(operation, flask)

    def _measure_with_floor(self, operation: Operation, flask: Sample) -> None:
        figure, floor = self.figures[operation.name], flask
        if operation.floor is not None:
            floor = self._measure_floor(operation.floor)
            self.floors[operation.floor.name].samples.append(floor)
        self.report(operation.title)
        sample = self._measure(operation, max(self.seconds, MIN_BATCH_S) if operation.events > 1 else self.seconds)
        figure.samples.append(sample)
        figure.floors.append(floor)
        figure.flask.append(flask)
        if not sample.is_valid:
            figure.failures |= statuses_of(self.target.port, operation.pool(self.target))
        if operation.writes:
            figure.idle_after_s.append(self.target.wait_until_idle())

    def _measure(self, operation: Operation, seconds: float) -> Sample:
        self.target.measurement += 1
        pool = operation.pool(self.target)
        with ExitStack() as stack:
            if operation.background_views:
                views = Steady(
                    self.target.port,
                    operations.views(self.target),
                    per_second=operation.background_views,
                    seconds=seconds + 2 * BACKGROUND_LEAD_S,
                )
                stack.enter_context(views)
                time.sleep(BACKGROUND_LEAD_S)
            return generator.measure(self.target.port, pool, seconds=seconds)

    def _measure_bare(self, name: str) -> Sample:
        self.report(TITLES[name])
        return generator.measure(self._ports[name], BARE, seconds=self.seconds)

    def _measure_floor(self, floor: Floor) -> Sample:
        self.report(floor.title)
        if floor is REDIS:
            return floor.measure(self.target, self.seconds)
        sample = floor.measure(self.target, max(self.seconds, MIN_BATCH_S))
        self.target.wait_until_idle()
        return sample

    def _other_floors(self) -> list[Floor]:
        redis = [REDIS] if self._has_redis() else []
        return [*redis, *(operation.floor for operation in self.chosen if operation.floor is not None)]

    def _has_redis(self) -> bool:
        """The raw read of a board is compared with reads of boards."""
        return any(operation.name.startswith("top10") for operation in self.chosen)


def statuses_of(port: int, pool: Pool) -> dict[int, int]:
    """Which statuses requests of this pool get: wrk only counts failures."""
    senders = generator.CONNECTIONS
    result = blast(port, lambda _, sender, sent: pool.render(sender, senders, sent), connections=senders, seconds=1)
    return result.statuses
