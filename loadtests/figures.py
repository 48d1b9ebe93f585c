"""Figures from rounds: medians, spreads and ratios. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from loadtests.generator import MAX_FAILED_SHARE, Sample


@dataclass(frozen=True)
class Spread:
    """The median of several rounds, and how far they are apart."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        known = [value for value in values if not math.isnan(value)]
        return cls(median(known), min(known), max(known)) if known else cls(math.nan, math.nan, math.nan)

    def __str__(self) -> str:
        return f"{number(self.median)} ({number(self.low)}-{number(self.high)})"

    def as_json(self) -> dict[str, float | None]:
        return {name: None if math.isnan(value) else round(value, 4) for name, value in vars(self).items()}


@dataclass
class Figure:
    """What was measured of one operation or floor: a sample of each round, and the floors of the same rounds."""

    name: str
    title: str
    events: int = 1
    floor: str | None = None
    at_least: float | None = None
    aim: float | None = None
    samples: list[Sample] = field(default_factory=list)
    floors: list[Sample] = field(default_factory=list)
    flask: list[Sample] = field(default_factory=list)
    # Why requests failed, by status.
    failures: dict[int, int] = field(default_factory=dict)
    # How long the workers were busy with it afterwards.
    idle_after_s: list[float] = field(default_factory=list)

    @property
    def per_second(self) -> Spread:
        return Spread.of([sample.per_second * self.events for sample in self.samples])

    @property
    def p50_ms(self) -> float:
        return Spread.of([sample.p50_ms for sample in self.samples]).median

    @property
    def p99_ms(self) -> float:
        return Spread.of([sample.p99_ms for sample in self.samples]).median

    @property
    def ratio(self) -> Spread:
        """To its floor, round by round: what slows the machine down in a round slows both."""
        return self._ratio_to(self.floors)

    @property
    def ratio_to_flask(self) -> Spread:
        return self._ratio_to(self.flask)

    def _ratio_to(self, floors: Sequence[Sample]) -> Spread:
        pairs = zip(self.samples, floors, strict=False)
        return Spread.of([sample.per_second * self.events / floor.per_second for sample, floor in pairs])

    @property
    def refused(self) -> str | None:
        """Why the figure is not reported; None: it is."""
        if not self.samples:
            return "not measured"
        share = sum(sample.failed_share for sample in self.samples) / len(self.samples)
        if share <= MAX_FAILED_SHARE:
            return None
        return f"{share:.0%} of the requests failed: {self.failures or 'by their connections'}"

    def as_json(self) -> dict[str, Any]:
        known = {"title": self.title, "floor": self.floor, "at_least": self.at_least, "aim": self.aim}
        if self.refused is not None:
            return {**known, "refused": self.refused}
        return {
            **known,
            "per_second": self.per_second.as_json(),
            "p50_ms": _known(self.p50_ms),
            "p99_ms": _known(self.p99_ms),
            "ratio": self.ratio.as_json() if self.floors else None,
            "ratio_to_flask": self.ratio_to_flask.as_json() if self.flask else None,
            "idle_after_s": Spread.of(self.idle_after_s).as_json() if self.idle_after_s else None,
            "rounds": [round(sample.per_second * self.events, 1) for sample in self.samples],
        }


def _known(value: float) -> float | None:
    return None if math.isnan(value) else round(value, 2)


def number(value: float) -> str:
    """Short: 12,345, 12, 1.2, 0.12."""
    if math.isnan(value):
        return "?"
    return f"{value:,.0f}" if abs(value) >= 10 else f"{value:.2g}"
