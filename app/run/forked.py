"""Our own processes as forks of this one.

Loading our libraries takes a second and a half of CPU. A fork has them at once and shares their memory, so the service
is ready sooner, and a process that died is replaced in a moment. (Not the live process: gevent must replace parts of
the standard library before anything of ours is imported.)
"""

import contextlib
import ctypes
import gc
import os
import runpy
import signal
import sys
import traceback
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TextIO

from app.run import environment
from app.run.launcher import die_with_parent

# By name: the workers are never imported by the service (pyproject.toml).
LIBRARIES = ("app.web", "app.server.processes", "migrations.run", "workers.jobs", "workers.run")
PR_SET_NAME = 15
HANDLED = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}


def load_libraries() -> None:
    """Import what the processes need. Nothing happens at import (tests/rules/test_code.py)."""
    gc.disable()  # there is hardly any garbage, and looking for it would take a sixth of the time
    for name in LIBRARIES:
        import_module(name)
    gc.collect()
    gc.freeze()  # a collection in a fork would write to all these objects, and so copy their memory
    gc.enable()


class ForkedProcess:
    """A process that runs `python -m module argument ...`, with what the supervisor uses of `subprocess.Popen`."""

    def __init__(self, module: str, arguments: Sequence[str], env: Mapping[str, str]) -> None:
        parent, (output, child_output) = os.getpid(), os.pipe()
        for stream in (sys.stdout, sys.stderr):  # the child must not write what is buffered here once more
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        # A signal that arrives before the child has handlers of its own waits for them.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
        try:
            self.pid = os.fork()
            if self.pid == 0:
                try:
                    _detach_from_parent(parent, child_output, mask)
                    _run(module, arguments, env)
                except BaseException:  # noqa: BLE001  nothing may return into the parent's code
                    traceback.print_exc()
                finally:
                    os._exit(1)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            os.close(child_output)
        self.stdout = open(output, "rb", buffering=0)  # noqa: SIM115, PTH123  closed by the supervisor
        self.returncode: int | None = None

    def poll(self) -> int | None:
        return self._status(os.WNOHANG)

    def wait(self) -> int:
        return self._status(0) or 0

    def _status(self, options: int) -> int | None:
        if self.returncode is None:
            try:
                pid, status = os.waitpid(self.pid, options)
            except ChildProcessError:  # this process ignores SIGCHLD, so the status is lost
                pid, status = self.pid, 0
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


def _detach_from_parent(parent: int, output: int, mask: set[signal.Signals | int]) -> None:
    """End with the parent, and share nothing else with it: no terminal, no open file, no signal handler."""
    die_with_parent(parent)
    signal.set_wakeup_fd(-1)
    for number in {*HANDLED, signal.SIGCHLD}:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    os.setsid()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for fd in (1, 2):
        os.dup2(output, fd)
    for file in list(Path("/dev/fd").iterdir()):
        if int(file.name) > 2:
            with contextlib.suppress(OSError):  # the list itself is closed by now
                os.close(int(file.name))
    sys.stdout, sys.stderr = _open_output(1, errors="strict"), _open_output(2, errors="backslashreplace")


def _open_output(fd: int, *, errors: str) -> TextIO:
    """Written line by line, as with PYTHONUNBUFFERED."""
    return open(fd, "w", buffering=1, closefd=False, encoding="utf-8", errors=errors)


def _run(module: str, arguments: Sequence[str], env: Mapping[str, str]) -> None:
    environment.replace(env)
    if sys.platform == "linux":  # in top and ps, where the command is the parent's
        with contextlib.suppress(OSError):
            ctypes.CDLL(None).prctl(PR_SET_NAME, f"plaudit-{arguments[0]}".encode(), 0, 0, 0)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
