"""Growth is measured in turn, and compared with the smallest size that counts."""

from loadtests.figures import Spread
from loadtests.generator import Sample
from loadtests.growth import ROUNDS, Growth, _in_turn


def test_sizes_take_turns_and_the_first_round_is_a_warm_up() -> None:
    measured: list[tuple[int, str]] = []

    def measure(size: int, name: str) -> Sample:
        measured.append((size, name))
        return Sample(1_000 / size, failed_share=0.5 if size == 100 else 0.0)

    growth = _in_turn("pages", [1, 10, 100], ["view", "like"], measure, lambda _: None)
    assert measured[:4] == [(1, "view"), (10, "view"), (100, "view"), (1, "like")]
    assert len(measured) == 6 * (ROUNDS + 1)
    assert growth.per_second["view"][:2] == [Spread(1_000, 1_000, 1_000), Spread(100, 100, 100)]
    assert growth.per_second["view"][2].as_json()["median"] is None  # too many failed
    assert growth.as_json()["cost"] == {"view": None, "like": None}


def test_the_cost_is_of_the_largest_size_against_the_base() -> None:
    rates = [Spread(rate, rate, rate) for rate in (50.0, 120.0, 100.0)]
    growth = Growth("pages", [1_000, 10_000, 1_000_000], {"view": rates}, base=1)
    assert growth.cost("view") == 1.2
    assert growth.as_json()["cost"] == {"view": 1.2}
