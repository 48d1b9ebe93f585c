"""The counters of a process: in memory, and in files of bounded number and size, for which there may be no space."""

import errno
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.multiprocess import MultiProcessCollector

from tenants import metrics
from tenants.metrics import MAX_FILE_BYTES, STEP_BYTES, MetricsFile, files_in, is_readable
from tests.small_disk import small_disk

ROOT = Path(__file__).parents[2]
COUNT = """
from tenants import logs
logs.configure(service="test", log_format="json")
from tenants.metrics import Counter, Gauge
SEEN = Counter("seen_total", "Seen.", ["thing"])
OPEN = Gauge("open", "Open.", ["thing"], multiprocess_mode="livesum")
"""


def run(code: str, folder: Path) -> "subprocess.Popen[str]":
    """A process that counts. It ends when its standard input does."""
    return subprocess.Popen(
        [sys.executable, "-c", COUNT + code],
        cwd=ROOT,
        env=os.environ | {"PROMETHEUS_MULTIPROC_DIR": str(folder)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def lines_of(process: "subprocess.Popen[str]") -> list[str]:
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 0, f"{process.returncode}: {said}"
    return said.splitlines()


def merged(folder: Path) -> dict[str, float]:
    """The samples of all processes, as they are scraped."""
    files = [str(file) for file in files_in(folder) if is_readable(file)]
    families: Any = MultiProcessCollector.merge(files)  # type: ignore[no-untyped-call]
    return {sample.name: sample.value for family in families for sample in family.samples}


def test_without_space_a_process_counts_in_memory_and_says_so_once() -> None:
    with small_disk(1) as disk:
        disk.fill()
        code = """
for number in range(3000):
    SEEN.labels(str(number)).inc()
OPEN.labels("door").set(1)
print(SEEN.labels("7")._value.get())
"""
        said, value = lines_of(run(code, disk.folder))
        line = json.loads(said)
        assert (line["action"], line["data"]["error"]) == ("metrics.in_memory", "No space left on device")
        assert value == "1.0"


def test_a_disk_that_becomes_full_ends_no_process_and_when_there_is_space_its_counts_are_written() -> None:
    with small_disk(1) as disk:
        code = """
from tenants import metrics
metrics.RETRY_S = 0
def count():
    for number in range(3000):
        SEEN.labels(str(number % 1000) + "x" * 200).inc()
SEEN.labels("first").inc()
print("ready", flush=True); input()
count()
print("counted", flush=True); input()
count()
"""
        process = run(code, disk.folder)
        assert process.stdin
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        disk.fill()
        process.stdin.write("\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["action"] == "metrics.in_memory"
        assert process.stdout.readline() == "counted\n", "a mapped file kills the process here (SIGBUS)"
        assert 1 <= merged(disk.folder)["seen_total"] < 1000
        disk.free()
        process.stdin.write("\n")
        process.stdin.flush()
        assert lines_of(process) == []
        families: Any = MultiProcessCollector.merge([str(file) for file in files_in(disk.folder)])  # type: ignore[no-untyped-call]
        assert sum(sample.value for family in families for sample in family.samples) == 6001


def test_processes_one_after_the_other_share_a_file_and_lose_no_count(tmp_path: Path) -> None:
    for _ in range(3):
        assert lines_of(run("SEEN.labels('a').inc(2)", tmp_path)) == []
    killed = run("import os, signal\nSEEN.labels('a').inc()\nos.kill(os.getpid(), signal.SIGKILL)", tmp_path)
    assert killed.wait(60) == -signal.SIGKILL
    killed.communicate()
    assert lines_of(run("SEEN.labels('a').inc()", tmp_path)) == []
    assert merged(tmp_path) == {"seen_total": 8}
    assert sorted(file.name for file in tmp_path.iterdir()) == ["counter_0.db", "slots.lock"]


def test_a_file_that_can_first_be_opened_later_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, key = str(tmp_path / "counter_1.db"), json.dumps(["seen", "seen_total", {}, ""])
    before = MetricsFile(name)
    before.write_value(key, 1000.0, 0.0)
    before.close()
    with monkeypatch.context() as failing:
        failing.setattr(os, "open", unopened)
        late = MetricsFile(name)
        late.write_value(key, 2.0, 0.0)
    late._retry_at = 0.0
    for value in (3.0, 4.0):
        late.write_value(key, value, 0.0)
    assert merged(tmp_path) == {"seen_total": 1004.0}
    late.close()


def unopened(*_arguments: Any) -> int:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def test_processes_at_once_and_forks_have_files_of_their_own(tmp_path: Path) -> None:
    fork = """
import os
SEEN.labels("a").inc()
OPEN.labels("door").set(1)
if os.fork() == 0:
    SEEN.labels("a").inc(10)
    OPEN.labels("door").set(2)
    print("ready", flush=True)
    input()
    os._exit(0)
os.wait()
"""
    first, second = run(fork, tmp_path), run(fork, tmp_path)
    for process in (first, second):
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
    assert merged(tmp_path) == {"seen_total": 22, "open": 6}
    assert len(list(tmp_path.glob("counter_*.db"))) == 4
    lines_of(first)
    assert merged(tmp_path) == {"seen_total": 22, "open": 3}, "counts stay, and what is open ends with its process"
    lines_of(second)
    assert merged(tmp_path) == {"seen_total": 22}


def test_a_process_beyond_the_bound_counts_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logged: Callable[[], list[dict[str, Any]]]
) -> None:
    monkeypatch.setattr(metrics, "MAX_PROCESSES", 1)
    holder = run("SEEN.labels('a').inc()\nprint('ready', flush=True)\ninput()", tmp_path)
    assert holder.stdout
    assert holder.stdout.readline() == "ready\n"
    beyond = MetricsFile(str(tmp_path / "counter_1.db"))
    beyond.write_value("[1]", 3.0, 0.0)
    beyond.write_value("[1]", 4.0, 0.0)
    assert beyond.read_value("[1]") == (4.0, 0.0)
    said = [line for line in logged() if line["action"] == "metrics.in_memory"]
    assert [line["data"]["folder"] for line in said] == [str(tmp_path)]
    holder.communicate("\n")
    assert merged(tmp_path) == {"seen_total": 1}


def test_a_file_has_a_bound_and_its_space_is_taken_in_advance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "MAX_FILE_BYTES", 2 * STEP_BYTES)
    file = MetricsFile(str(tmp_path / "counter_1.db"))
    on_disk = tmp_path / "counter_0.db"
    for number in range(2_000):
        file.write_value(f'["name", "name", {{}}, "{number}"]', number, 0.0)
        blocks = on_disk.stat().st_blocks * 512
        assert blocks >= on_disk.stat().st_size, "the file has no holes"
    assert on_disk.stat().st_size == 2 * STEP_BYTES
    assert file.read_value('["name", "name", {}, "1999"]') == (1999, 0.0), "what does not fit is in memory"
    file.close()
    assert MAX_FILE_BYTES * 3 * 5 < 64 * 1024 * 1024, "a container's /dev/shm has room for full files of five processes"


@pytest.mark.parametrize("content", [b"", b"\0" * 5, b"\xff" * STEP_BYTES, b"\0\2\0\0" + b"\0" * STEP_BYTES])
def test_a_file_that_a_crash_left_unreadable_is_replaced_and_not_scraped(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "counter_9.db").write_bytes(content)
    broken = tmp_path / "counter_0.db"
    broken.write_bytes(content)
    assert merged(tmp_path) == {}
    assert lines_of(run("SEEN.labels('a').inc()", tmp_path)) == []
    assert merged(tmp_path) == {"seen_total": 1}


def test_metrics_are_imported_from_here() -> None:
    """Whoever imports them from the library may have its mapped files."""
    direct = re.compile(
        r"from prometheus_client import [^\n]*\b(Counter|Gauge|Histogram|Summary)\b|prometheus_client\.[CGHS]"
    )
    files = [file for name in ("analytics", "app", "tenants", "workers") for file in (ROOT / name).rglob("*.py")]
    found = {str(file.relative_to(ROOT)) for file in files if direct.search(file.read_text())}
    assert found == {"tenants/metrics.py"}
