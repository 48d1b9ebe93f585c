"""Recovery is the time from the end of a fault to the first good answer after the last bad one."""

from typing import Any

from tests.chaos import report
from tests.chaos.history import History
from tests.chaos.run import Result
from tests.chaos.seen import Finding


def sample(began: float, ended: float, *, ok: bool = True) -> dict[str, Any]:
    return {"note": "sample", "at": ended, "column": "write", "node": "a", "began": began, "ended": ended, "ok": ok}


def fault(began: float, healed: float, kind: str = "kill web parent") -> dict[str, Any]:
    return {"note": "fault", "at": healed, "kind": kind, "link": "", "nodes": "a", "began": began, "healed": healed}


def recovered(*samples: dict[str, Any], until: float = 20) -> float:
    history = History([], [fault(10, 11), fault(until, until), *samples])
    return round(report.recoveries(history)[0][1]["write"], 3)


def test_recovery_counts_from_the_end_of_the_fault_to_the_first_good_answer() -> None:
    failed = [sample(10.1, 10.2, ok=False), sample(12.0, 13.5, ok=False)]
    assert recovered(*failed, sample(13.6, 13.7), sample(14, 14.1)) == 2.7
    assert recovered(sample(9, 9.5, ok=False), sample(10.5, 10.6)) == 0, "what was before is another fault's"
    assert recovered(sample(10.1, 10.2, ok=False), sample(10.3, 10.4)) == 0, "it was good before the end"
    assert recovered(*failed) == 9, "not before the next fault"
    assert recovered(sample(19.5, 25, ok=False)) == 0, "that is the next fault's"
    assert recovered(sample(15, 25)) == 9


def test_a_late_answer_is_no_recovery_until_it_is_there() -> None:
    assert recovered(sample(10.5, 14.0), sample(14.1, 14.2)) == 3


def test_missed_targets_are_listed_and_end_a_strict_run_with_1() -> None:
    columns = {"write": 2.1, "read": 2.0, "board": 9.0, "socket": 9.0}
    missed = report.missed([(fault(10, 11), columns), (fault(20, 21), columns)])
    assert missed == ["kill web parent, write: p50 2.1 s, max 2.1 s (target 2 and 5)"]
    assert report.missed([(fault(10, 11), columns | {"write": 1.9})]) == []
    assert [Result(1, [], [], missed).status(is_strict=strict) for strict in (False, True)] == [0, 1]
    assert Result(1, [], []).status(is_strict=True) == 0
    assert Result(1, [Finding("rule", "what")], []).status() == 1


def test_the_table_marks_missed_targets() -> None:
    def line(seconds: float) -> str:
        columns = {"write": seconds, "read": 0.0, "board": 9.0, "socket": 9.0}
        return report.table([(fault(10, 11), columns)])[1]

    assert "!" not in line(1.9)
    assert line(2.1).count("!") == 1
    assert line(1.9).endswith("2/5 write and reads")
