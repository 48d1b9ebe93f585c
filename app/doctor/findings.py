"""What a check has found: how bad it is, what it is, why it matters, and what to do."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    OK = "ok"
    WARN = "warn"  # works, and could be better or break later
    PROBLEM = "problem"  # data, answers or speed suffer now: the command exits with 1


@dataclass(frozen=True)
class Finding:
    level: Level
    about: str
    what: str
    why: str = ""
    advice: str = ""


def ok(about: str, what: str) -> Finding:
    return Finding(Level.OK, about, what)


def warn(about: str, what: str, *, why: str, advice: str) -> Finding:
    return Finding(Level.WARN, about, what, why, advice)


def problem(about: str, what: str, *, why: str, advice: str) -> Finding:
    return Finding(Level.PROBLEM, about, what, why, advice)


def has_problem(findings: Iterable[Finding]) -> bool:
    return any(finding.level is Level.PROBLEM for finding in findings)


def size(number: float) -> str:
    """A number of bytes for people: `1.5 GB`, in PostgreSQL's units of 1024."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if number < 1024:
            return f"{number:.3g} {unit}"
        number /= 1024
    return f"{number:.3g} TB"


def duration(seconds: float) -> str:
    """A time for people, in the unit that fits: `12 s`, `3 min`, `5 h`, `9 days`."""
    for unit, length, until in (("s", 1, 120), ("min", 60, 7200), ("h", 3600, 172_800)):
        if seconds < until:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds / 86_400:.3g} days"


def some(names: Iterable[str], *, most: int = 3) -> str:
    """The first few of many names, and how many there are besides."""
    listed = list(names)
    rest = f" and {len(listed) - most:,} more" if len(listed) > most else ""
    return ", ".join(listed[:most]) + rest
