"""Turns: whose work is next, who waits, and who is refused."""

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from tenants.turns import NoTurn, Party, Turns
from tests.service import eventually

A, B, C = (Party(name) for name in "abc")
KNOWN_A = Party("a", is_known=True)


class Line:
    """One slot, taken until `let_go`; callers that wait for it, and the order in which they got it."""

    def __init__(self, pool: ThreadPoolExecutor, **bounds: float) -> None:
        self.turns = Turns(1, **{"max_of_party": 8, "max_waiting": 20, "wait_s": 60.0, **bounds})  # type: ignore[arg-type]
        self.served: list[Party] = []
        self._pool = pool
        self._end = threading.Event()
        self._holder = pool.submit(self._hold)
        eventually(lambda: self.turns._free == 0)

    def _hold(self) -> None:
        with self.turns.of(Party("holder")):
            assert self._end.wait(60)

    def join(self, party: Party) -> Future[None]:
        """A caller of this party, who waits when this returns, or has been refused."""

        def work() -> None:
            with self.turns.of(party):
                self.served.append(party)

        before = self.length(party)
        started = self._pool.submit(work)
        eventually(lambda: started.done() or self.length(party) == before + 1)
        return started

    def length(self, party: Party) -> int:
        with self.turns._lock:
            return len(self.turns._queues[party.is_known].get(party, ()))

    def let_go(self) -> None:
        self._end.set()
        self._holder.result(60)


@contextmanager
def line_of(**bounds: float) -> Iterator[Line]:
    with ThreadPoolExecutor(40) as pool:
        line = Line(pool, **bounds)
        try:
            yield line
        finally:
            line.let_go()


def test_tenants_are_served_in_turn_however_many_of_one_wait() -> None:
    with line_of() as line:
        waiting = [line.join(party) for party in (A, A, A, A, B, B, C)]
        line.let_go()
        for one in waiting:
            one.result(60)
        assert line.served == [A, B, C, A, B, A, A]


def test_known_callers_are_served_alternately_with_the_others() -> None:
    with line_of() as line:
        waiting = [line.join(party) for party in (A, A, A, KNOWN_A, B, KNOWN_A)]
        line.let_go()
        for one in waiting:
            one.result(60)
        assert line.served == [KNOWN_A, A, KNOWN_A, B, A, A]


def test_a_queue_is_bounded_and_the_next_caller_refused_at_once() -> None:
    with line_of(max_of_party=2) as line:
        waiting = [line.join(A), line.join(A)]
        with pytest.raises(NoTurn) as refused:
            line.join(A).result(60)
        assert refused.value.retry_after_s == 1
        others = [line.join(KNOWN_A), line.join(B)]
        line.let_go()
        for one in [*waiting, *others]:
            one.result(60)


def test_where_all_places_are_taken_the_newest_of_the_longest_queue_makes_room_for_a_shorter_one() -> None:
    with line_of(max_waiting=5) as line:
        first, second, newest = (line.join(A) for _ in range(3))
        others = [line.join(B), line.join(B)]
        newcomer = line.join(C)
        with pytest.raises(NoTurn):
            newest.result(60)
        assert not newcomer.done()
        for party in (A, B):
            with pytest.raises(NoTurn):
                line.join(party).result(60)
        line.let_go()
        for one in (first, second, *others, newcomer):
            one.result(60)
        assert (line.turns._free, line.turns._waiting) == (1, 0)


def test_whoever_waits_too_long_is_refused_and_leaves_no_place_taken() -> None:
    with line_of(wait_s=0.05) as line:
        with pytest.raises(NoTurn):
            line.join(A).result(60)
        assert (line.length(A), line.turns._waiting) == (0, 0)
    with line.turns.of(A):
        assert line.turns._free == 0
    assert line.turns._free == 1


def test_all_slots_come_back_after_many_callers_and_errors() -> None:
    turns = Turns(2, max_of_party=4, max_waiting=8, wait_s=60)
    most, running, lock = [0], [0], threading.Lock()

    def work(number: int) -> None:
        try:
            with turns.of(Party(str(number % 5), is_known=number % 3 == 0)):
                with lock:
                    running[0] += 1
                    most[0] = max(most[0], running[0])
                try:
                    if number % 7 == 0:
                        raise ValueError
                finally:
                    with lock:
                        running[0] -= 1
        except (NoTurn, ValueError):
            pass

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(work, range(500)))
    assert most[0] <= 2
    assert (turns._free, turns._waiting) == (2, 0)
    assert not turns._queues[True]
    assert not turns._queues[False]
