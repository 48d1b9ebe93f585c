"""Stopping: the next signal only after the deadline of the one before, and none for a process that has ended."""

import contextlib
import signal
import subprocess
import time
from collections.abc import Iterator

import pytest

from app.run import stopping as module
from app.run.stopping import stopping, wait_out

SIGNALS = (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL)


@contextlib.contextmanager
def ignoring(*names: str) -> Iterator["subprocess.Popen[bytes]"]:
    """A process that ignores these signals."""
    script = f"trap '' {' '.join(names)}; echo; while :; do sleep 0.05; done"
    with subprocess.Popen(["/bin/sh", "-c", script], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"\n"
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("ignored", "ends_by"), [((), signal.SIGINT), (("INT",), signal.SIGQUIT), (("INT", "QUIT"), signal.SIGKILL)]
)
def test_each_signal_has_its_time_before_the_next_one(
    ignored: tuple[str, ...], ends_by: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FORCE_WITHIN_S", 0.5 if ends_by is signal.SIGKILL else 60)
    with ignoring(*ignored) as process:
        began = time.monotonic()
        wait_out(stopping(process, *SIGNALS, within_s=0.5 if ignored else 60))
        assert process.returncode == -ends_by
        assert time.monotonic() - began >= 0.5 * len(ignored)


def test_who_is_in_a_hurry_waits_for_the_first_signal_no_longer() -> None:
    with ignoring("INT") as process:
        steps = stopping(process, *SIGNALS, within_s=600, is_urgent=lambda: True)
        wait_out(steps)
        assert process.returncode == -signal.SIGQUIT


def test_a_process_that_has_ended_is_sent_nothing() -> None:
    class Ended:
        def poll(self) -> int:
            return 0

        def send_signal(self, _number: int) -> None:
            raise AssertionError

    assert list(stopping(Ended(), *SIGNALS, within_s=1)) == []
