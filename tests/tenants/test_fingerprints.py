"""Processes compare fingerprints: who has another secret or public address than those before it answers nobody."""

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import text

from tenants import fingerprints, liveness
from tenants.credential_feed import HEARTBEAT_EVERY_S, LISTED_S, RETURN_S, Feed, boottime
from tenants.db import owner_tx
from tenants.fingerprints import Fingerprints

SECRET, OTHER = "a secret of one service" * 2, "another secret of it   " * 2
URL = "https://plaudit.example"


class Node:
    """Another machine's process, which is listed when it says so."""

    def __init__(self, secret: str, url: str | None = None) -> None:
        self.later_s = 0.0
        self.feed = Feed(lambda _change: None, lambda: None, clock=lambda: boottime() + self.later_s)
        self.feed._pid = os.getpid()
        self.feed.fingerprints = fingerprints.of(secret, url)
        self.beat()

    def beat(self) -> str | None:
        """In which variable it differs, a second later."""
        self.later_s += HEARTBEAT_EVERY_S
        self.feed.poll()
        return self.feed.difference.variable if self.feed.difference is not None else None

    def stop(self) -> None:
        with owner_tx() as tx:
            seen_at = f"now() - interval '{LISTED_S + 1} s'"
            tx.execute(text(f"UPDATE processes SET seen_at = {seen_at} WHERE id = :id"), {"id": self.feed.id})

    def miss_beats(self) -> None:
        """PostgreSQL does not answer it."""
        self.later_s += LISTED_S + 1
        self.stop()


@pytest.fixture
def start(connected: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Node]]:
    """Nodes beside which nobody compares: neither the tests' own process nor what an earlier test left."""
    monkeypatch.setattr(liveness._feed, "fingerprints", Fingerprints())
    started: list[Node] = []

    def forget() -> None:
        with owner_tx() as tx:
            tx.execute(text("UPDATE processes SET secret_fingerprint = NULL, url_fingerprint = NULL"))

    def start(secret: str, url: str | None = None) -> Node:
        if not started:
            forget()
        started.append(Node(secret, url))
        return started[-1]

    yield start
    for node in started:
        node.feed._leave()


def test_it_differs_from_who_was_first_until_that_one_is_gone(
    start: Callable[..., Node], logged: Callable[[], list[dict[str, Any]]]
) -> None:
    first, second = start(SECRET), start(OTHER)
    assert [first.beat(), second.beat()] == [None, "PLAUDIT_SECRET_KEY"]
    assert second.feed.difference is not None
    assert second.feed.difference.pid == os.getpid()
    second.feed.poll()
    assert not second.feed.is_trusted(second.feed._clock()), "so the event loop answers nothing"
    first.stop()
    assert second.beat() is None
    second.feed.poll()
    assert second.feed.is_trusted(second.feed._clock())
    assert first.beat() == "PLAUDIT_SECRET_KEY", "it was suspended meanwhile: now the other is first"
    lines = [(line["level"], line["action"]) for line in logged() if line["action"].startswith("settings.")]
    assert lines == [("critical", "settings.differ"), ("info", "settings.agree"), ("critical", "settings.differ")]
    assert SECRET not in str(logged())


def test_one_that_differs_takes_nobody_elses_place_when_the_others_are_restarted(start: Callable[..., Node]) -> None:
    a, wrong, b = start(SECRET), start(OTHER), start(SECRET)
    for restarted in (a, b):
        restarted.stop()
        new = start(SECRET)
        assert [wrong.beat(), new.beat()] == ["PLAUDIT_SECRET_KEY", None]


def test_after_an_outage_of_the_database_the_first_to_be_back_takes_nobody_elses_place(
    start: Callable[..., Node],
) -> None:
    a, b, wrong = start(SECRET), start(SECRET), start(OTHER)
    assert [a.beat(), b.beat(), wrong.beat()] == [None, None, "PLAUDIT_SECRET_KEY"]
    for node in (a, b, wrong):
        node.miss_beats()
    back = [node.beat() for _ in range(2) for node in (wrong, a, b)]
    assert back == ["PLAUDIT_SECRET_KEY", None, None] * 2
    for node in (a, b, wrong):
        node.miss_beats()
    assert wrong.beat() == "PLAUDIT_SECRET_KEY"
    *alone, last = [wrong.beat() for _ in range(int(RETURN_S / HEARTBEAT_EVERY_S) + 1)]
    assert (set(alone[:-2]), last) == ({"PLAUDIT_SECRET_KEY"}, None), "the others did not come back"


def test_public_addresses_are_compared_where_they_are_set(start: Callable[..., Node]) -> None:
    start(SECRET)
    first, wrong, without = start(SECRET, URL), start(SECRET, f"{URL}:8443"), start(SECRET)
    assert [first.beat(), wrong.beat(), without.beat()] == [None, "PLAUDIT_PUBLIC_URL", None]
    assert start(SECRET, URL).beat() is None


def test_of_two_that_start_at_once_one_goes_on(start: Callable[..., Node]) -> None:
    """Neither sees the other's row in its first statement."""
    first, second = start(SECRET), start(OTHER)
    with owner_tx() as tx:
        tx.execute(text("UPDATE processes SET differs = false WHERE id = :id"), {"id": second.feed.id})
    assert [second.beat(), first.beat(), second.beat()] == ["PLAUDIT_SECRET_KEY", None, "PLAUDIT_SECRET_KEY"]


def test_a_process_that_issues_nothing_and_one_of_the_release_before_differ_from_nobody(
    start: Callable[..., Node],
) -> None:
    first = start(SECRET)
    first.feed.fingerprints = Fingerprints()
    assert first.beat() is None
    assert start(OTHER).beat() is None
    assert first.beat() is None


def test_a_fingerprint_says_nothing_about_what_it_is_of() -> None:
    ours = fingerprints.of(SECRET, URL)
    assert ours == fingerprints.of(SECRET, URL)
    others = {fingerprints.of(OTHER, URL).url, fingerprints.of(SECRET, f"{URL}/x").url, ours.secret, ours.url}
    assert len(others) == 4, "also the address's depends on the secret: nobody can guess it"
    assert len(ours.secret or "") == 16
