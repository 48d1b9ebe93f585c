"""Runs `plaudit` commands for tests, each in a process that is forked from one with their libraries loaded.

Most of a command's time is importing SQLAlchemy, psycopg and the rest, and the tests run a hundred commands. Nothing
happens at import (tests/rules/test_code.py), so a forked command behaves as in a new process. `plaudit up` and
what it starts are started as users start them: see tests/service.py.
"""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

TIMEOUT_S = 300
ROOT = Path(__file__).parents[1]
LIBRARIES = (
    "app.cli",
    "app.run.up",
    "app.run.backups",
    "app.run.demo",
    "migrations.run",
    "analytics.boards.checking",
    "analytics.ingest.imports",
)

_WRITE = os.O_WRONLY | os.O_CREAT | os.O_APPEND
_forking: list["subprocess.Popen[str]"] = []
_one_at_a_time = threading.Lock()


def run(arguments: Sequence[str], *, env: Mapping[str, str]) -> "CompletedProcess[str]":
    """Run one command to its end, as `subprocess.run([plaudit, *arguments], capture_output=True)` runs it."""
    with tempfile.TemporaryDirectory() as folder, _one_at_a_time, _timeout():
        process = _forking[0] if _forking else _start()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps({"arguments": arguments, "env": dict(env), "folder": folder}) + "\n")
        process.stdin.flush()
        status = process.stdout.readline()
        assert status, "the process that forks commands has ended"
        output = {name: (Path(folder) / name).read_text(errors="replace") for name in ("stdout", "stderr")}
        return CompletedProcess(["plaudit", *arguments], int(status), **output)


def _start() -> "subprocess.Popen[str]":
    """Start the process that forks commands. It ends with this one, which closes its standard input."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.commands"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    _forking.append(process)
    return process


@contextlib.contextmanager
def _timeout() -> Iterator[None]:
    def kill_all() -> None:
        for process in _forking:
            process.kill()

    timer = threading.Timer(TIMEOUT_S, kill_all)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _fork_for_each_request() -> None:
    for name in LIBRARIES:
        import_module(name)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            _run_command(json.loads(line))
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


def _run_command(request: dict[str, Any]) -> None:
    """Run the command in this process, with streams and an environment of its own."""
    folder = Path(request["folder"])
    for number, (name, flags) in enumerate([(os.devnull, os.O_RDONLY), ("stdout", _WRITE), ("stderr", _WRITE)]):
        os.dup2(os.open(folder / name, flags), number)
    os.environ.clear()
    os.environ.update(request["env"])
    sys.argv = ["plaudit", *request["arguments"]]
    import_module("app.cli").main()  # ends the process


if __name__ == "__main__":
    _fork_for_each_request()
