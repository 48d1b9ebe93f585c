"""Recovery by kind of fault, and the longest answer. Pure but for the lines that it returns."""

from collections import defaultdict
from collections.abc import Sequence
from statistics import median

from tests.chaos.history import History, Record
from tests.chaos.probes import COLUMNS
from tests.chaos.seen import Finding

# What a good answer takes at most, by probe: a slower one is no recovery yet.
GOOD_WITHIN_S = {"write": 1.0, "read": 1.0, "board": 2.0, "socket": 1.5}
# By kind: the columns that the target is for, p50 and max in seconds.
TARGETS = {
    "kill web worker": (("write", "read"), 0.5, 2.0),
    "kill web parent": (("write", "read"), 2.0, 5.0),
    "kill live": (("socket",), 2.0, 5.0),
    "kill live worker": (("socket",), 2.0, 5.0),
    "kill worker": (("board",), 1.0, 3.0),
    "kill valkey": (("write", "read"), 0.5, 5.0),
    "kill backend": (("write", "read"), 1.0, 5.0),
    "kill postmaster": (("write", "read"), 3.0, 10.0),
    "kill up": (("write", "read"), 10.0, 30.0),
}
MAX_SHOWN = 12


def recoveries(history: History) -> list[tuple[Record, dict[str, float]]]:
    """For each fault, how many seconds after it was healed each probe was good again and stayed so."""
    by_probe: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for sample in sorted(history.noted("sample"), key=lambda one: float(one["began"])):
        by_probe[sample["column"], sample["node"]].append(sample)
    faults = history.noted("fault")
    end = max((note["at"] for note in history.notes), default=0.0)
    found = []
    for number, fault in enumerate(faults):
        until = faults[number + 1]["began"] if number + 1 < len(faults) else end
        columns: dict[str, float] = {
            column: max(recovery(fault, by_probe[column, node], column, until) for node in fault["nodes"])
            for column in COLUMNS
        }
        found.append((fault, columns))
    return found


def recovery(fault: Record, samples: Sequence[Record], column: str, until: float) -> float:
    """The seconds until the last bad sample was over, and a good one had come. 0: none was bad.

    Of a sample that goes on when the next fault begins, only the part before it counts.
    """
    within = [one for one in samples if one["ended"] > fault["began"] and one["began"] < until]
    bad = [one for one in within if _is_bad(one, column, until)]
    if not bad:
        return 0.0
    last = bad[-1]
    good = (one["ended"] for one in within if one["began"] >= last["began"] and not _is_bad(one, column, until))
    recovered = last["ended"] if last["ok"] else next(good, until)  # late, but there: it is good from then on
    return max(0.0, min(float(recovered), until) - float(fault["healed"]))


def _is_bad(sample: Record, column: str, until: float) -> bool:
    took_s = min(float(sample["ended"]), until) - float(sample["began"])
    return (not sample["ok"] and float(sample["ended"]) <= until) or took_s > GOOD_WITHIN_S[column]


def longest_answer(history: History) -> tuple[float, str]:
    """The longest time that a caller waited, whose own connection was not disturbed."""
    disturbed = [
        (fault["began"], fault["healed"], fault["nodes"])
        for fault in history.noted("fault")
        if fault["link"] == "client-web"
    ]
    longest = (0.0, "")
    for call in history.calls:
        took_s = call.answered.get("took_s", 0.0)
        if took_s > longest[0] and not any(
            call.asked["node"] in nodes and began < call.finished and call.invoked < healed
            for began, healed, nodes in disturbed
        ):
            longest = (took_s, str(call))
    return longest


def table(found: Sequence[tuple[Record, dict[str, float]]]) -> list[str]:
    """Count, p50 and max by kind; `!` where a target is missed."""
    lines = [f"{'fault':<28}{'count':>6}" + "".join(f"{column + ' p50/max':>18}" for column in COLUMNS) + "  target"]
    for kind, recovered in sorted(_by_kind(found).items()):
        line = f"{kind:<28}{len(recovered):>6}"
        targeted, p50_s, max_s = TARGETS.get(kind, ((), 0.0, 0.0))
        for column in COLUMNS:
            values = [each[column] for each in recovered]
            is_missed = column in targeted and _is_missed(values, p50_s, max_s)
            line += f"{f'{median(values):.1f}/{max(values):.1f}' + ('!' if is_missed else ''):>18}"
        lines.append(line + (f"  {p50_s:g}/{max_s:g} {' and '.join(targeted)}s" if targeted else ""))
    return lines


def missed(found: Sequence[tuple[Record, dict[str, float]]]) -> list[str]:
    """What is marked in the table, one line for each kind and column."""
    lines = []
    for kind, recovered in sorted(_by_kind(found).items()):
        targeted, p50_s, max_s = TARGETS.get(kind, ((), 0.0, 0.0))
        for column in targeted:
            values = [each[column] for each in recovered]
            if _is_missed(values, p50_s, max_s):
                took = f"p50 {median(values):.1f} s, max {max(values):.1f} s"
                lines.append(f"{kind}, {column}: {took} (target {p50_s:g} and {max_s:g})")
    return lines


def _is_missed(values: Sequence[float], p50_s: float, max_s: float) -> bool:
    return median(values) > p50_s or max(values) > max_s


def _by_kind(found: Sequence[tuple[Record, dict[str, float]]]) -> dict[str, list[dict[str, float]]]:
    by_kind: dict[str, list[dict[str, float]]] = defaultdict(list)
    for fault, columns in found:
        by_kind[f"{fault['kind']} {fault['link']}".strip()].append(columns)
    return by_kind


def findings(found: Sequence[Finding]) -> list[str]:
    """The findings, some of each rule."""
    by_rule: dict[str, list[Finding]] = defaultdict(list)
    for finding in found:
        by_rule[finding.rule].append(finding)
    lines = []
    for rule, of_rule in by_rule.items():
        lines += [f"{rule}: {len(of_rule)}", *(f"  {finding.what}" for finding in of_rule[:MAX_SHOWN])]
        if len(of_rule) > MAX_SHOWN:
            lines.append("  …")
    return lines
