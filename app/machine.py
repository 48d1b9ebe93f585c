"""What the machine, or the control group, allows this process."""

import contextlib
import os
from pathlib import Path


def machine_memory() -> int:
    """In bytes: the machine's, or what its control group allows."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with contextlib.suppress(OSError, ValueError):
        memory = min(memory, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return memory


def fit_in_memory(bytes_each: int, *, share: int, processes: int = 1) -> int:
    """How many of such things each of these processes may keep, if all together may use this part of the memory."""
    return machine_memory() // share // bytes_each // processes
