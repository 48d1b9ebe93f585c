"""What the machine allows."""

import os

from app.machine import fit_in_memory, machine_memory


def test_the_memory_is_at_most_the_machines() -> None:
    assert 2**26 < machine_memory() <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def test_processes_share_the_memory() -> None:
    alone = fit_in_memory(2**10, share=8)
    assert 2**10 * alone <= machine_memory() / 8
    assert fit_in_memory(2**10, share=8, processes=4) == alone // 4
