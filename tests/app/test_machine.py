"""What the machine allows."""

import os

from app.machine import machine_memory


def test_the_memory_is_at_most_the_machines() -> None:
    assert 2**26 < machine_memory() <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
