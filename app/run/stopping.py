"""How a process is stopped: politely first, and with more force after each deadline.

PostgreSQL needs the middle step. Asked to stop (SIGINT) just after it began its recovery from a crash, PostgreSQL 18
waits for ever for processes of its own that ignore it; SIGQUIT ends it at once, and it recovers when it starts again.
"""

import signal
import time
from collections.abc import Callable, Iterator
from typing import Protocol

# After each signal but the first.
FORCE_WITHIN_S = 3.0
POLL_S = 0.02


class Stoppable(Protocol):
    def poll(self) -> int | None: ...

    def send_signal(self, number: int) -> None: ...


def stopping(
    process: Stoppable, *signals: signal.Signals, within_s: float, is_urgent: Callable[[], bool] = lambda: False
) -> Iterator[signal.Signals]:
    """Send the first signal, and the next one whenever its time is over, until the process has ended.

    Yields the last signal while it waits, for a caller that has other things to do. Once `is_urgent`, the first signal
    has had its time.
    """
    if process.poll() is not None:
        return
    for number in signals:
        process.send_signal(number)
        deadline = time.monotonic() + (within_s if number == signals[0] else FORCE_WITHIN_S)
        while time.monotonic() < deadline and not (number == signals[0] and is_urgent()):
            yield number
            if process.poll() is not None:
                return


def wait_out(steps: Iterator[signal.Signals]) -> None:
    """Do nothing else meanwhile."""
    for _ in steps:
        time.sleep(POLL_S)
