"""A short run of `make chaos`, always with one seed."""

from tests.chaos.checker import Limits
from tests.chaos.run import run

MINUTES, SEED = 2.5, 1
# Other tests run beside it. Callers wait for 20 s, so a longer answer would not be noticed.
LIMITS = Limits(boards_within_s=100, answers_within_s=18)


def test_a_short_run_loses_nothing_and_counts_nothing_twice() -> None:
    result = run(SEED, MINUTES, limits=LIMITS)
    assert result.findings == [], "\n".join(result.lines)
