"""The feed: every process applies every change, in whatever order they commit, and is trusted only while it does."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from uuid import uuid4

import pytest
from sqlalchemy import text

from tenants import credential_feed
from tenants.credential_feed import (
    HEARTBEAT_EVERY_S,
    MAX_PAUSE_S,
    MAX_WAIT_S,
    REGISTERED_S,
    TRUST_S,
    Change,
    Feed,
    boottime,
)
from tenants.db import owner_tx, tenant_tx
from tenants.platform_calls import CallFailed
from tests.service import eventually


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Reader:
    """Another process's side of the feed: one whose reads the test decides about, by a clock that it moves."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.applied: list[Change] = []
        self.drops = 0
        self.feed = Feed(self.applied.append, self._drop_all, clock=self.clock)
        self.feed._pid = os.getpid()

    def _drop_all(self) -> None:
        self.drops += 1

    def is_trusted(self) -> bool:
        return self.feed.is_trusted(self.clock.now)

    def poll(self, *, after_s: float = 0.0) -> None:
        self.clock.now += after_s
        self.feed.poll()

    def names(self, tenant: str) -> list[str]:
        return [name for change in self.applied if change.tenant_id == tenant for name in change.names]


@pytest.fixture
def reader(connected: None) -> Iterator[Reader]:
    reader = Reader()
    yield reader
    reader.feed._leave()


@pytest.fixture
def trusted(reader: Reader) -> Reader:
    """A reader that is registered and has read since."""
    reader.poll()
    reader.poll(after_s=0.1)
    assert reader.is_trusted()
    return reader


def write(tenant: str, *names: str) -> Change:
    with tenant_tx(tenant) as tx:
        return credential_feed.insert(tx, tenant, names)


def test_each_change_is_applied_once(tenant: str, reader: Reader) -> None:
    write(tenant, "user:1")
    reader.poll()
    reader.poll()
    write(tenant, "user:2")
    reader.poll()
    reader.poll()
    assert reader.names(tenant)[-2:] == ["user:1", "user:2"]
    assert len({change.id for change in reader.applied}) == len(reader.applied)


def test_changes_that_commit_out_of_order_are_all_found(tenant: str, reader: Reader) -> None:
    with ExitStack() as open_transactions:
        first = open_transactions.enter_context(tenant_tx(tenant, separate=True))
        earlier = credential_feed.insert(first, tenant, ["user:1"])
        later = write(tenant, "user:2")
        assert earlier.id < later.id
        reader.poll()
        assert reader.names(tenant)[-1:] == ["user:2"]
    reader.poll()
    assert reader.names(tenant)[-2:] == ["user:2", "user:1"]


def test_it_is_trusted_only_after_a_read_that_began_when_it_was_registered(reader: Reader) -> None:
    assert not reader.is_trusted()
    reader.poll()
    assert not reader.is_trusted(), "a revocation meanwhile did not wait for this process"
    reader.poll(after_s=0.1)
    assert reader.is_trusted()


def test_it_is_trusted_for_400_ms_after_the_start_of_its_last_read(trusted: Reader) -> None:
    trusted.clock.now += TRUST_S - 0.001
    assert trusted.is_trusted()
    trusted.clock.now += 0.002
    assert not trusted.is_trusted()
    trusted.poll()
    assert trusted.is_trusted()


def test_a_read_that_takes_long_is_trusted_from_its_start(trusted: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    def slowly(*args: object, **options: object) -> list[tuple[object, ...]]:
        trusted.clock.now += TRUST_S
        return []

    monkeypatch.setattr(trusted.feed._calls, "run", slowly)
    trusted.poll()
    assert not trusted.is_trusted()


def test_it_is_not_trusted_while_others_may_not_know_of_it(trusted: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its reads succeed, and its registration does not."""
    real = trusted.feed._calls.run

    def only_read(statement: str, *args: object, **options: object) -> object:
        if "INSERT" in statement:
            raise CallFailed
        return real(statement, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(trusted.feed._calls, "run", only_read)
    trusted.feed._heartbeat_at = trusted.clock.now
    for _ in range(int(REGISTERED_S / 0.3)):
        trusted.clock.now += 0.3
        if trusted.clock.now - trusted.feed._heartbeat_at >= HEARTBEAT_EVERY_S:
            with pytest.raises(CallFailed):
                trusted.poll()
        else:
            trusted.poll()
    assert trusted.clock.now - trusted.feed._heartbeat_at == pytest.approx(REGISTERED_S)
    trusted.clock.now += 0.01
    assert not trusted.is_trusted()
    monkeypatch.undo()
    trusted.poll()
    assert not trusted.is_trusted(), "the read began before it was registered again"
    trusted.poll(after_s=0.1)
    assert trusted.is_trusted()


def test_after_a_long_pause_everything_is_dropped_and_after_a_short_one_only_what_changed(
    tenant: str, trusted: Reader
) -> None:
    drops = trusted.drops
    write(tenant, "user:1")
    trusted.poll(after_s=2.0)
    assert (trusted.names(tenant)[-1:], trusted.drops) == (["user:1"], drops)
    trusted.poll(after_s=MAX_PAUSE_S + 1)
    assert trusted.drops == drops + 1


def test_more_changes_than_are_read_at_once_drop_everything(
    tenant: str, trusted: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(credential_feed, "MAX_READ_ROWS", 3)
    for number in range(5):
        write(tenant, f"user:{number}")
    drops = trusted.drops
    trusted.poll()
    assert trusted.drops == drops + 1
    trusted.poll()
    assert set(trusted.names(tenant)) >= {f"user:{number}" for number in range(5)}


def test_what_was_applied_is_remembered_for_as_long_as_it_is_read(trusted: Reader) -> None:
    trusted.feed.mark_applied([Change(-1, "acme", ())])
    assert -1 in trusted.feed._applied_ids(trusted.clock.now + credential_feed.REREAD_S - 1)
    assert -1 not in trusted.feed._applied_ids(trusted.clock.now + credential_feed.REREAD_S + 1)


def test_a_refused_read_ends_the_trust_and_the_next_good_one_restores_it(
    reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the real clock and its own thread; PostgreSQL refuses the statement."""
    feed = Feed(reader.applied.append, lambda: None)
    feed.start()
    try:
        eventually(lambda: feed.is_trusted(boottime()))
        real = credential_feed._READ
        monkeypatch.setattr(credential_feed, "_READ", "SELECT no_such_function(%s, %s)")
        eventually(lambda: not feed.is_trusted(boottime()))
        monkeypatch.setattr(credential_feed, "_READ", real)
        eventually(lambda: feed.is_trusted(boottime()))
    finally:
        feed.stop()


def test_after_a_lost_connection_it_registers_again_and_drops_everything(connected: None) -> None:
    """The database may have been restored from a backup, which uses the ids of changes again."""
    drops: list[None] = []
    applied: list[Change] = []
    feed = Feed(applied.append, lambda: drops.append(None))
    feed.start()
    try:
        eventually(lambda: feed.is_trusted(boottime()))
        before = len(drops)
        feed.mark_applied([Change(10**15, "acme", ())])
        # Its pool has two connections, and takes the one that was not used longest.
        backends = [backend for _ in range(5) for (backend,) in feed._calls.run("SELECT pg_backend_pid()")]
        with owner_tx() as tx:
            tx.run(text("DELETE FROM processes WHERE id = :id"), {"id": feed.id})
            tx.run(_DISCONNECT, {"backends": backends})
        eventually(lambda: len(drops) > before)
        eventually(lambda: feed.is_trusted(boottime()))
        assert is_listed(feed)
        assert 10**15 not in feed._applied
    finally:
        feed.stop()


_DISCONNECT = text("SELECT pg_terminate_backend(pid) FROM unnest(CAST(:backends AS int[])) AS b(pid)")


def wait(feed: Feed, change: Change, **options: Callable[[], None]) -> tuple[bool, float]:
    began = boottime()
    return feed.wait_for_others([change], committed_at=began, **options), boottime() - began


@pytest.fixture
def other() -> Iterator[Feed]:
    """A second process, which reads by itself."""
    feed = Feed(lambda _change: None, lambda: None)
    feed.start()
    eventually(lambda: feed.is_trusted(boottime()))
    yield feed
    feed.stop()
    eventually(lambda: not is_listed(feed))


def is_listed(feed: Feed) -> bool:
    with owner_tx() as tx:
        return tx.run(text("SELECT 1 FROM processes WHERE id = :id"), {"id": feed.id}) != []


def test_a_revocation_waits_until_the_others_have_applied_it(
    tenant: str, other: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    applied = threading.Event()

    def apply_slowly(_change: Change) -> None:
        time.sleep(0.1)
        applied.set()

    monkeypatch.setattr(other, "_apply", apply_slowly)
    waiting = Feed(lambda _change: None, lambda: None)
    acknowledged, took_s = wait(waiting, write(tenant, "user:1"), hasten=other.poll_soon)
    assert (acknowledged, applied.is_set()) == (True, True) or took_s >= MAX_WAIT_S


def test_a_revocation_waits_half_a_second_for_a_process_that_does_not_answer(tenant: str, reader: Reader) -> None:
    reader.poll()  # registered, and never reads again
    hastened: list[None] = []
    acknowledged, took_s = wait(reader_of_nothing(), write(tenant, "user:1"), hasten=lambda: hastened.append(None))
    assert not acknowledged
    assert took_s >= MAX_WAIT_S
    assert len(hastened) == 1


def reader_of_nothing() -> Feed:
    return Feed(lambda _change: None, lambda: None)


def test_nobody_waits_for_a_process_that_is_gone(tenant: str, reader: Reader) -> None:
    reader.poll()
    with owner_tx() as tx:
        tx.run(text("UPDATE processes SET seen_at = now() - interval '6 s' WHERE id = :id"), {"id": reader.feed.id})
    seen = read_registered(reader)
    assert reader.feed.id not in seen


def read_registered(reader: Reader) -> set[object]:
    acknowledgements = credential_feed._Acknowledgements(boottime)
    acknowledgements.cover([], by_all_but=reader.feed.id, since=boottime(), until=boottime() + 10)
    return set(acknowledgements._seen)


def test_a_list_of_processes_read_before_the_commit_is_read_again(tenant: str, reader: Reader) -> None:
    """A process may have registered between the two, and have read before the commit."""
    acknowledgements = credential_feed._Acknowledgements(boottime)
    nobody, until = uuid4(), boottime() + 60
    acknowledgements.cover([], by_all_but=nobody, since=boottime(), until=until)
    reader.poll()
    change = write(tenant, "user:1")
    assert not acknowledgements.cover([change.id], by_all_but=nobody, since=boottime(), until=until)
    reader.poll()
    acknowledgements.cover([], by_all_but=nobody, since=boottime(), until=until)
    assert change.id in acknowledgements._seen[reader.feed.id]


def test_its_clock_counts_seconds() -> None:
    before, real = boottime(), time.monotonic()
    time.sleep(0.01)
    assert boottime() - before == pytest.approx(time.monotonic() - real, abs=1)
