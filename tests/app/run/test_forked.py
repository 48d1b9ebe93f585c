"""Forked processes: a program of their own, and nothing of their parent but its loaded modules."""

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from app.run.forked import ForkedProcess
from tests.service import eventually

Start = Callable[..., ForkedProcess]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    """Start a module with this code."""

    def start(code: str, *arguments: str, **env: str) -> ForkedProcess:
        name = f"forked_{len(list(tmp_path.iterdir()))}"
        (tmp_path / f"{name}.py").write_text(code)
        return ForkedProcess(name, arguments or ("it",), env)

    monkeypatch.syspath_prepend(tmp_path)
    return start


def output_of(process: ForkedProcess) -> str:
    with process.stdout:
        return process.stdout.read().decode()


def test_it_runs_a_module_with_its_arguments_and_environment(start: Start) -> None:
    code = "import json, os, sys\nprint(json.dumps([__name__, sys.argv[1:], dict(os.environ)]), flush=True)"
    process = start(code, "one", "two", ONLY="this")
    assert json.loads(output_of(process)) == ["__main__", ["one", "two"], {"ONLY": "this"}]


@pytest.mark.parametrize(
    ("code", "status"), [("import os; os._exit(0)", 0), ("import os; os._exit(7)", 7), ("raise ValueError('a bug')", 1)]
)
def test_its_status_is_known(start: Start, code: str, status: int) -> None:
    process = start(code)
    said = output_of(process)
    assert process.wait() == process.poll() == process.returncode == status
    assert ("ValueError: a bug" in said) == (status == 1)


@pytest.mark.skipif(sys.platform != "linux", reason="the open files are listed by Linux")
def test_it_has_none_of_its_parents_files_handlers_or_terminal(start: Start) -> None:
    code = """
import json, os, signal, sys
sessions = [os.getsid(0), os.getpid()]
handlers = [signal.getsignal(number) == signal.SIG_DFL for number in (signal.SIGTERM, signal.SIGHUP)]
blocked = len(signal.pthread_sigmask(signal.SIG_BLOCK, []))
print(json.dumps([len(set(sessions)), handlers, blocked, sorted(map(int, os.listdir("/proc/self/fd")))]), flush=True)
"""
    with open(os.devnull) as _open_here:  # noqa: PTH123
        before = signal.signal(signal.SIGTERM, lambda *_: None)
        try:
            process = start(code)
        finally:
            signal.signal(signal.SIGTERM, before)
        sessions, handlers, blocked, files = json.loads(output_of(process))
    assert (sessions, handlers, blocked) == (1, [True, True], 0)
    assert set(files) <= {0, 1, 2, 3}, "the third is the list of files itself"


def test_a_signal_ends_it(start: Start) -> None:
    process = start("import time; print('up', flush=True); time.sleep(600)")
    assert process.stdout.read(3) == b"up\n"
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert process.wait() == -signal.SIGTERM
    process.send_signal(signal.SIGTERM)  # of a process that is gone: nothing
    process.stdout.close()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux signals a parent's death to its children")
def test_it_dies_with_its_parent(start: Start, tmp_path: Path) -> None:
    code = """
import os, time
from app.run.forked import ForkedProcess
child = ForkedProcess("forked_child", ("child",), {})
print(child.pid, flush=True)
time.sleep(600)
"""
    (tmp_path / "forked_child.py").write_text("import time; time.sleep(600)")
    parent = start(code)
    child = psutil.Process(int(parent.stdout.readline()))
    assert eventually(lambda: child.name() == "plaudit-child")
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    psutil.wait_procs([child], timeout=30)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE
    parent.stdout.close()
