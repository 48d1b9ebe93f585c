"""No regular expression of ours takes more than linear time, whatever it is given: anybody may send it anything."""

import ast
import itertools
import re
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("app", "analytics", "tenants", "workers")
METHODS = frozenset({"match", "fullmatch", "search", "sub", "split", "findall", "finditer"})

# A quadratic pattern takes 50 ms and more for twice as many characters, a linear one less than a millisecond.
CHARACTERS = 5_000
SURELY_LINEAR_S = 0.01
MAX_RATIO = 3.0

UNITS = ("a", "A", "0", "-", ".", "_", " ", "\t", "\n", "/", ":", "@", "%", '"', ";", "=", "[", "://a:", "eyJ-", "pk_")
UNITS_ALONE = (*UNITS, "eyJ-eyJ.", "bearer ", "sk_a-", "a@a.", "[a]:", "LOG: ", "CREATE POLICY owner ON a TO ", "<a:")
PREFIXES = ("", "a@", "a@a.", "://", "://a:", "bearer ", "eyJ", "pk_", "/api/v1/pages/", "https://", "[", '"', "LOG:")


def hostile(characters: int) -> Iterator[str]:
    """Runs of the same few characters, most with a last one that spoils what nearly matched."""
    yield from (_run(unit, characters) for unit in UNITS_ALONE)
    for unit, prefix in itertools.product(UNITS_ALONE, PREFIXES):
        yield prefix + _run(unit, characters) + "!"
    for one, other in itertools.permutations(UNITS, 2):
        yield _run(one + other, characters) + "!"


def _run(unit: str, characters: int) -> str:
    return unit * (characters // len(unit))


class Uses:
    """Every regular expression in some source files, and how each is used."""

    def __init__(self) -> None:
        self.found: dict[tuple[str, int], set[str]] = defaultdict(set)
        self.unreadable: set[str] = set()
        self._named: dict[str, set[tuple[str, int]]] = defaultdict(set)
        self._methods_of: dict[str, set[str]] = defaultdict(set)

    def read(self, name: str, source: str) -> "Uses":
        tree = ast.parse(source)
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and _is_compile(node.value):
                pattern = self._pattern(node.value, name)
                if pattern is not None:
                    self._named[node.targets[0].id].add(pattern)
            if isinstance(node, ast.keyword) and node.arg == "noise" and not isinstance(node.value, ast.Name):
                if isinstance(node.value, ast.Constant):
                    self.found[str(node.value.value), 0].add("search")  # app/supervisor.py compiles it
                else:
                    self.unreadable.add(f"{name}: noise={ast.unparse(node.value)[:80]}")
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                self._read_call(node, node.func, name)
        return self

    def _read_call(self, call: ast.Call, func: ast.Attribute, name: str) -> None:
        owner = func.value.id if isinstance(func.value, ast.Name) else getattr(func.value, "attr", "")
        if owner == "re" and func.attr in METHODS | {"compile"}:
            pattern = self._pattern(call, name)
            if pattern is not None:
                self.found[pattern] |= {func.attr} - {"compile"}
        elif func.attr in METHODS:
            self._methods_of[owner].add(func.attr)
        elif func.attr == "Regexp":  # marshmallow's
            self._methods_of[ast.unparse(call.args[0]).rpartition(".")[2]].add("match")

    def _pattern(self, node: ast.expr, name: str) -> tuple[str, int] | None:
        assert isinstance(node, ast.Call)
        given = node.args[0]
        if not isinstance(given, ast.Constant):
            self.unreadable.add(f"{name}: {ast.unparse(node)}")
            return None
        flags = re.NOFLAG
        for extra in [*node.args[1:], *(keyword.value for keyword in node.keywords if keyword.arg == "flags")]:
            if isinstance(extra, ast.Attribute) and isinstance(extra.value, ast.Name) and extra.value.id == "re":
                flags |= re.RegexFlag[extra.attr]
        return str(given.value), int(flags)

    def __iter__(self) -> Iterator[tuple[re.Pattern[str], str]]:
        for name, patterns in self._named.items():
            for pattern in patterns:
                self.found[pattern] |= self._methods_of[name]
        for (text, flags), methods in self.found.items():
            for method in methods or {"search"}:  # given to something else: the hardest is assumed
                yield re.compile(text, flags), method


def _is_compile(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) == "re.compile"


def seconds(pattern: re.Pattern[str], method: str, text: str) -> float:
    run = getattr(pattern, method)
    began = time.process_time()
    run("", text) if method == "sub" else run(text)
    return time.process_time() - began


def slow_input(pattern: re.Pattern[str], method: str) -> str | None:
    """The beginning of what takes this pattern more than linear time; None if nothing does."""
    for short, long in zip(hostile(CHARACTERS), hostile(2 * CHARACTERS), strict=True):
        if seconds(pattern, method, long) > SURELY_LINEAR_S and _ratio(pattern, method, short, long) > MAX_RATIO:
            return long[:40]
    return None


def _ratio(pattern: re.Pattern[str], method: str, short: str, long: str) -> float:
    """How many times as long the longer text takes; the best of five each, beside other work on the machine."""
    took = [(seconds(pattern, method, short), seconds(pattern, method, long)) for _ in range(5)]
    return min(longer for _, longer in took) / max(1e-6, min(shorter for shorter, _ in took))


def uses_in_the_code() -> Uses:
    uses = Uses()
    for package in PACKAGES:
        for file in sorted((ROOT / package).rglob("*.py")):
            uses.read(str(file.relative_to(ROOT)), file.read_text())
    return uses


def test_no_regular_expression_takes_more_than_linear_time() -> None:
    uses = uses_in_the_code()
    slow = {(pattern.pattern, method): found for pattern, method in uses if (found := slow_input(pattern, method))}
    assert slow == {}
    assert len(uses.found) > 25, "they were found"
    assert uses.unreadable == {"app/run/supervisor.py: re.compile(server.noise)"}, "read as `noise=` instead"


OLD_MASK = (
    r"(?i)(bearer\s+)[\w.~+/=-]+|(?<![A-Za-z0-9])(?:pk|sk|rt|at|rst|tkt|ds)_[\w-]{16,}"
    r"|\beyJ[\w-]+\.[\w-]+\.[\w-]*|(://[^/\s:@]*:)[^/\s@]+(?=@)"
)


@pytest.mark.parametrize(
    ("source", "is_slow"),
    [
        (f"import re\nMASK = re.compile({OLD_MASK!r})\nMASK.sub('', path)", True),
        (r"import re; re.fullmatch(r'\s*x', text)", False),
    ],
    ids=["the mask of log lines that was", "leading spaces"],
)
def test_the_rule_notices_a_slow_one(source: str, is_slow: bool) -> None:
    pattern, method = next(iter(Uses().read("example.py", source)))
    assert (slow_input(pattern, method) is not None) is is_slow
