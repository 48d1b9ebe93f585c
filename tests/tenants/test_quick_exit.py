"""The end of a process: its status, and what was to be done before it."""

import subprocess
import sys

import pytest

from tests.service import ROOT


def end(code: str) -> "subprocess.CompletedProcess[str]":
    """Run this as the main function of a process."""
    program = (
        f"import atexit, sys, threading, time\nfrom tenants.quick_exit import run_and_exit\ndef main():\n    {code}\n"
    )
    command = [sys.executable, "-c", program + "run_and_exit(main)"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("code", "status", "errors"),
    [
        ("pass", 0, ""),
        ("sys.exit()", 0, ""),
        ("sys.exit(3)", 3, ""),
        ("sys.exit('why')", 1, "why\n"),
    ],
)
def test_the_status_is_that_of_the_main_function(code: str, status: int, errors: str) -> None:
    done = end(code)
    assert (done.returncode, done.stderr) == (status, errors)


def test_output_that_cannot_be_written_is_an_error() -> None:
    program = "from tenants.quick_exit import run_and_exit\nrun_and_exit(lambda: print('lost'))"
    for redirected, status in ((">/dev/full", 120), (">&-", 0)):
        shell = ["/bin/sh", "-c", f'"{sys.executable}" -c "$PROGRAM" {redirected}']
        assert subprocess.run(shell, cwd=ROOT, env={"PROGRAM": program}, check=False).returncode == status


def test_a_bug_is_reported_as_by_the_interpreter() -> None:
    done = end("sys.excepthook = lambda *error: print('reported', error[1]); raise RuntimeError('a bug')")
    assert (done.returncode, done.stdout) == (1, "reported a bug\n")


def test_a_bug_shows_its_traceback() -> None:
    done = end("raise RuntimeError('a bug')")
    assert done.returncode == 1
    assert "RuntimeError: a bug" in done.stderr


def test_what_is_buffered_is_written_and_what_is_registered_is_called() -> None:
    assert end("sys.stdout.write('buffered'); atexit.register(print, ' and called')").stdout == "buffered and called\n"


def test_a_thread_that_is_still_running_is_not_waited_for() -> None:
    assert end("threading.Thread(target=time.sleep, args=(600,)).start()").returncode == 0
