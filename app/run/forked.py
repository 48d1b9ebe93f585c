"""Our own processes as forks of this one.

To load our libraries takes a second and a half of CPU. A fork has them at once and shares their memory, so the service
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

from app.run import environment
from app.run.launcher import die_with_parent

# By name: the workers are never imported by the service (pyproject.toml).
LIBRARIES = ("app.web", "granian.server", "migrations.run", "workers.jobs", "workers.run")
PR_SET_NAME = 15


def load_libraries() -> None:
    """Import what the processes need. Nothing happens at import (tests/rules/test_code.py)."""
    for name in LIBRARIES:
        import_module(name)
    gc.collect()
    gc.freeze()  # a collection in a fork would write to all these objects, and so copy their memory


class ForkedProcess:
    """A process that runs `python -m module argument ...`, with what the supervisor uses of `subprocess.Popen`."""

    def __init__(self, module: str, arguments: Sequence[str], env: Mapping[str, str]) -> None:
        parent, (output, its_output) = os.getpid(), os.pipe()
        # A signal that arrives before the fork has handlers of its own waits for them.
        handled = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
        signal.pthread_sigmask(signal.SIG_BLOCK, handled)
        self.pid = os.fork()
        if self.pid == 0:
            try:
                _leave_parent(parent, its_output, handled)
                _run(module, arguments, env)
            except BaseException:  # noqa: BLE001  nothing may return into the parent's code
                traceback.print_exc()
            finally:
                os._exit(1)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, handled)
        os.close(its_output)
        self.stdout = open(output, "rb", buffering=0)  # noqa: SIM115, PTH123  closed by the supervisor
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self) -> int:
        if self.returncode is None:
            _, status = os.waitpid(self.pid, 0)
            self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


def _leave_parent(parent: int, output: int, handled: set[signal.Signals]) -> None:
    """End with the parent, and share nothing else with it: no terminal, no open file, no signal handler."""
    die_with_parent(parent)
    signal.set_wakeup_fd(-1)
    for number in handled:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, handled)
    os.setsid()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for standard in (1, 2):
        os.dup2(output, standard)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    # Without what is still in the parent's buffers, and line by line, as with PYTHONUNBUFFERED.
    sys.stdout = sys.__stdout__ = open(1, "w", buffering=1, closefd=False)  # type: ignore[misc]  # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(2, "w", buffering=1, closefd=False)  # type: ignore[misc]  # noqa: SIM115


def _run(module: str, arguments: Sequence[str], env: Mapping[str, str]) -> None:
    environment.replace(env)
    if sys.platform == "linux":  # in top and ps, where the command is the parent's
        with contextlib.suppress(OSError):
            ctypes.CDLL(None).prctl(PR_SET_NAME, f"plaudit-{arguments[0]}".encode(), 0, 0, 0)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
