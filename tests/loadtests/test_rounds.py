"""Operations and floors take turns, and each ratio is of one moment."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest

from loadtests import generator, rounds
from loadtests.generator import Sample
from loadtests.operations import Floor, Operation
from loadtests.pools import Pool
from loadtests.rounds import Rounds
from loadtests.target import Target

SERVICE, WSGI, FLASK = 1, 2, 3


class FakeTarget:
    port = SERVICE
    measurement = 0

    def wait_until_idle(self) -> float:
        return 0.5


def operation(number: int, **more: Any) -> Operation:
    return Operation(f"o{number}", f"operation {number}", lambda _: Pool([b"x"]), **more)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The ports that were measured, in order."""
    ports: list[int] = []

    def measure(port: int, _pool: Pool, *, seconds: float) -> Sample:
        ports.append(port)
        return Sample({SERVICE: 500.0, WSGI: 9_000.0, FLASK: 1_000.0}[port] / max(1.0, seconds))

    @contextmanager
    def bare_server(name: str) -> Iterator[int]:
        yield {"function": WSGI, "application": FLASK}[name]

    monkeypatch.setattr(generator, "measure", measure)
    monkeypatch.setattr(rounds, "bare_server", bare_server)
    return ports


def test_the_flask_route_is_measured_again_after_a_few_operations(sent: list[int]) -> None:
    said: list[str] = []
    run = Rounds(
        cast("Target", FakeTarget()), [operation(number) for number in range(6)], seconds=1, report=said.append
    )
    run.run(2)
    one_round = [WSGI, FLASK, *[SERVICE] * 4, FLASK, *[SERVICE] * 2]
    assert sent == [*[SERVICE] * 6, *one_round * 2]  # after a warm-up
    assert len(one_round) == run.measurements_per_round()
    assert run.figures["o5"].ratio.median == 0.5
    assert len(run.figures["o5"].samples) == 2
    assert len(run.floors["flask"].samples) == 4
    assert said[6] == "a bare WSGI function"


def test_an_operation_is_compared_with_its_own_floor(sent: list[int]) -> None:
    floor = Floor("sql", "raw SQL", lambda _target, _seconds: Sample(50_000))
    batches = operation(1, floor=floor, events=100, writes=True)
    run = Rounds(cast("Target", FakeTarget()), [batches], seconds=2, report=lambda _: None)
    run.run(1)
    figure = run.figures["o1"]
    assert figure.per_second.median == 25_000
    assert figure.ratio.median == 0.5
    assert figure.ratio_to_flask.median == 50
    assert figure.idle_after_s == [0.5]
    assert run.floors["sql"].samples == [Sample(50_000)]
