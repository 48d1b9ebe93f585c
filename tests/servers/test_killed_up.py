"""`plaudit up` that is killed at twenty moments. (`make test` has a few of them: tests/faults/test_killed_up.py.)"""

from statistics import median

import pytest

from tests.conftest import reachable_folder
from tests.faults.test_killed_up import MAX_READY_S, READY_WITHIN_S, times_of_starts
from tests.service import copy_prepared


@pytest.mark.long
def test_killed_at_any_of_twenty_moments_it_starts_again() -> None:
    with reachable_folder() as path:
        took = times_of_starts(copy_prepared(path / "data"), rounds=10)
    assert median(took) < READY_WITHIN_S
    assert max(took) < MAX_READY_S
