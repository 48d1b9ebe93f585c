"""Same seed, same schedule; and as many faults and kinds as a run must have."""

import os
from collections import Counter

import pytest

from tests.chaos.faults import why_not
from tests.chaos.schedule import LINKS, Kind, schedule

KINDS = list(Kind)


def test_a_seed_gives_the_same_schedule_again_and_another_seed_another_one() -> None:
    assert schedule(7, 20, KINDS) == schedule(7, 20, KINDS)
    assert schedule(7, 20, KINDS) != schedule(8, 20, KINDS)
    assert schedule(7, 5, KINDS) == schedule(7, 20, KINDS)[: len(schedule(7, 5, KINDS))]


def test_twenty_minutes_have_seventy_faults_of_every_kind_and_link() -> None:
    for seed in range(20):
        faults = schedule(seed, 20, KINDS)
        assert len(faults) >= 70
        assert Counter(fault.kind for fault in faults).keys() == {*Kind}
        assert {fault.link for fault in faults if fault.kind.is_network} == {*LINKS}


def test_most_kinds_need_no_special_rights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert why_not(Kind.DISK_FULL), "also where root runs the tests"
    assert len(Kind) >= 25
    assert len([kind for kind in Kind if not why_not(kind)]) >= 20
