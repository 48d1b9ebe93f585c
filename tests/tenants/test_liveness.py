"""Answers from memory: kept until what they depend on changes, never longer than they are trusted, by tenant."""

import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from secrets import token_hex
from typing import Any

import pytest
from sqlalchemy import text

from tenants import liveness, redis
from tenants.credential_feed import MAX_UNCOMMITTED_S, Change, boottime
from tenants.db import current_tx, owner_tx, tenant_tx
from tenants.fair_cache import FairCache
from tenants.liveness import MAX_AGE_S, SETTINGS, TENANT, Basis, KeptAnswers
from tests.service import eventually


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Source:
    """What PostgreSQL would say, and how often it was asked."""

    def __init__(self, says: Any = "member", names: Sequence[str] = ("session:1",)) -> None:
        self.says, self.names, self.reads = says, names, 0
        self.meanwhile: Callable[[], None] = lambda: None

    def __call__(self) -> tuple[Any, Sequence[str]]:
        self.reads += 1
        says = self.says
        self.meanwhile()
        return says, self.names


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def trusted() -> threading.Event:
    event = threading.Event()
    event.set()
    return event


@pytest.fixture
def answers(clock: Clock, trusted: threading.Event) -> KeptAnswers:
    return KeptAnswers(lambda _now: trusted.is_set(), clock=clock)


def changed(*names: str, tenant: str = "acme") -> Change:
    return Change(1, tenant, names)


def test_an_answer_is_read_once(answers: KeptAnswers) -> None:
    source, none = Source(), Source(None, ["session:2"])
    assert [answers.look_up("acme", "session:1", source) for _ in range(3)] == ["member"] * 3
    assert [answers.look_up("acme", "session:2", none) for _ in range(3)] == [None] * 3
    assert (source.reads, none.reads) == (1, 1)


@pytest.mark.parametrize("name", ["session:1", "user:1", TENANT])
def test_an_answer_is_not_used_once_one_of_its_names_has_changed(answers: KeptAnswers, name: str) -> None:
    source = Source("member", ["session:1", "user:1"])
    answers.look_up("acme", "session:1", source)
    source.says = None
    answers.apply(changed("session:2", SETTINGS))
    assert answers.look_up("acme", "session:1", source) == "member", "others change nothing"
    answers.apply(changed(name))
    assert answers.look_up("acme", "session:1", source) is None


def test_what_was_read_before_a_change_was_applied_is_not_kept(answers: KeptAnswers) -> None:
    source = Source()
    source.meanwhile = lambda: answers.apply(changed("session:1"))
    assert answers.look_up("acme", "session:1", source) == "member", "to the caller who asked before the change"
    source.says, source.meanwhile = None, lambda: None
    assert answers.look_up("acme", "session:1", source) is None


def test_what_was_read_before_everything_was_dropped_is_not_kept(answers: KeptAnswers) -> None:
    source = Source()
    source.meanwhile = answers.drop_all
    answers.look_up("acme", "session:1", source)
    source.says = None
    assert answers.look_up("acme", "session:1", source) is None


def test_without_trust_every_answer_is_read_and_none_is_kept(answers: KeptAnswers, trusted: threading.Event) -> None:
    source = Source("before")
    answers.look_up("acme", "session:1", source)
    trusted.clear()
    source.says = "meanwhile"
    assert [answers.look_up("acme", "session:1", source) for _ in range(2)] == ["meanwhile"] * 2
    assert source.reads == 3
    trusted.set()
    assert answers.look_up("acme", "session:1", source) == "before", "the feed has applied what changed meanwhile"


def test_an_answer_is_read_again_after_a_minute(answers: KeptAnswers, clock: Clock) -> None:
    source = Source()
    answers.look_up("acme", "session:1", source)
    clock.now += MAX_AGE_S - 0.1
    answers.look_up("acme", "session:1", source)
    assert source.reads == 1
    clock.now += 0.2
    answers.look_up("acme", "session:1", source)
    assert source.reads == 2


def test_the_same_name_in_another_tenant_is_another_answer(answers: KeptAnswers) -> None:
    ours, theirs = Source("admin"), Source(None)
    assert answers.look_up("acme", "session:1", ours) == "admin"
    assert answers.look_up("evil", "session:1", theirs) is None
    answers.apply(changed("session:1", TENANT, tenant="evil"))
    answers.look_up("acme", "session:1", ours)
    answers.look_up("evil", "session:1", theirs)
    assert (ours.reads, theirs.reads) == (1, 2), "and a change in one drops nothing of the other"


def test_memory_is_bounded(answers: KeptAnswers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(liveness, "MAX_ANSWERS", 3)
    monkeypatch.setattr(liveness, "MAX_CHANGED_NAMES", 5)
    for number in range(10):
        answers.look_up("acme", f"session:{number}", Source())
    assert len(answers._answers) == 3
    for number in range(20):
        before = Source(names=[f"user:{number}"])
        answers.look_up("acme", "session:x", before)
        answers.apply(changed(f"user:{number}"))
        after = Source(None)
        assert answers.look_up("acme", "session:x", after) is None, "also when the list of changes is full"
        assert answers._changed_names <= 5


def test_a_tenant_with_many_answers_makes_us_forget_its_own_only(
    answers: KeptAnswers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(liveness, "MAX_ANSWERS_OF_TENANT", 3)
    neighbour = Source()
    answers.look_up("quiet", "session:1", neighbour)
    for number in range(20):
        answers.look_up("busy", f"key:{number}", Source(None))
    answers.look_up("quiet", "session:1", neighbour)
    assert (neighbour.reads, len(answers._answers)) == (1, 4)


def test_a_recorded_change_is_effective_here_when_the_commit_returns(tenant: str, trusted_memory: None) -> None:
    name = f"session:{token_hex(8)}"
    source = Source("member", [name])
    liveness.look_up(tenant, name, source)
    with tenant_tx(tenant) as tx:
        liveness.record(tx, [name])
        source.says = None
    assert liveness.look_up(tenant, name, source) is None


def test_a_change_that_is_rolled_back_changes_nothing(tenant: str, trusted_memory: None) -> None:
    def record_and_fail() -> None:
        with tenant_tx(tenant) as tx:
            liveness.record(tx, ["session:1"])
            raise ZeroDivisionError

    seen: list[Change] = []
    liveness.watch(seen.append)
    with pytest.raises(ZeroDivisionError):
        record_and_fail()
    with tenant_tx(tenant) as tx:
        liveness.record(tx, ["session:2"])
    assert [change.names for change in seen if change.tenant_id == tenant] == [("session:2",)]


def test_all_changes_of_a_transaction_are_waited_for_at_once(
    tenant: str, other_tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[set[str]] = []
    monkeypatch.setattr(
        liveness._feed,
        "wait_for_others",
        lambda changes, **_: waits.append({f"{change.tenant_id} {change.names}" for change in changes}),
    )
    with owner_tx() as tx:
        liveness.record(tx, ["user:2", "user:1", "user:2"], tenant_id=tenant)
        liveness.record(tx, [], tenant_id=tenant)
        liveness.record(tx, [TENANT], tenant_id=other_tenant)
    assert waits == [{f"{tenant} ('user:1', 'user:2')", f"{other_tenant} ('{TENANT}',)"}]


def test_a_change_committed_long_after_it_was_written_is_written_again(
    tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others read the rows of the last minute only."""
    with tenant_tx(tenant) as tx:
        liveness.record(tx, ["user:1"])
        monkeypatch.setattr(liveness, "boottime", lambda: boottime() + MAX_UNCOMMITTED_S)
    with owner_tx() as tx:
        rows = tx.run(text("SELECT names FROM credential_changes WHERE tenant_id = :t"), {"t": tenant})
        assert [row.names for row in rows].count(["user:1"]) == 2


def test_a_watcher_that_fails_stops_neither_the_change_nor_other_watchers(
    tenant: str, trusted_memory: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_change: Change) -> None:
        raise ZeroDivisionError

    seen: list[Change] = []
    monkeypatch.setattr(liveness, "_watchers", [fail, seen.append])
    with tenant_tx(tenant) as tx:
        liveness.record(tx, ["session:1"])
    # The feed's own thread may apply the change too, if it reads the row before the commit's caller goes on.
    assert {tuple(change.names) for change in seen if change.tenant_id == tenant} == {("session:1",)}


def test_an_announcement_is_published_if_anybody_has_to_be_waited_for(
    tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    published: list[Any] = []

    def wait(_changes: Sequence[Change], *, committed_at: float, hasten: Callable[[], None]) -> bool:
        assert current_tx() is None
        hasten()
        return True

    monkeypatch.setattr(liveness._feed, "wait_for_others", wait)
    with redis.boards().redis.pubsub() as pubsub:  # type: ignore[no-untyped-call]
        pubsub.subscribe(liveness.CHANNEL)
        counted = partial(redis.on_every_server, redis.boards().redis, "PUBSUB NUMSUB", liveness.CHANNEL)
        eventually(lambda: any(found[0][1] for found in counted()))
        with tenant_tx(tenant) as tx:
            liveness.record(tx, ["session:1"])

        def received() -> bool:
            message = pubsub.get_message(timeout=0.1)
            if message is not None:
                published.append(message["data"])
            return b'{"tenant":"%s","names":["session:1"]}' % tenant.encode() in published

        eventually(received)


def test_a_moment_that_falls_into_a_change_is_before_it(answers: KeptAnswers) -> None:
    """Otherwise what is made of an answer from before the change would be used after it."""
    moments: list[tuple[int, float]] = []

    class Names(tuple[str, ...]):
        __slots__ = ()

        def __iter__(self) -> Iterator[str]:
            moments.append(answers.moment())
            return super().__iter__()

    class Answers(FairCache[Any, Any]):
        def clear(self) -> None:
            moments.append(answers.moment())
            super().clear()

    def is_used(moment: tuple[int, float]) -> bool:
        return answers.is_current(Basis("acme", ("session:1", TENANT), *moment))

    answers.apply(Change(1, "acme", Names(["session:1"])))
    assert not is_used(moments.pop())
    answers._answers = Answers(liveness._groups_of)
    answers.drop_all()
    assert not is_used(moments.pop())
    assert is_used(answers.moment())


def test_several_answers_are_fetched_at_once_and_kept_unless_they_changed_meanwhile(
    answers: KeptAnswers, trusted: threading.Event
) -> None:
    read: list[Sequence[liveness.Asked]] = []

    def source(asked: Sequence[liveness.Asked]) -> list[tuple[str, Sequence[str]]]:
        read.append(list(asked))
        if len(read) == 2:
            answers.apply(changed("session:3"))
        return [(f"{of} of {tenant}", [f"session:{of}"]) for tenant, of in asked]

    def fetch(*asked: liveness.Asked) -> None:
        answers.fetch(asked, "session:{}".format, source)

    fetch(("acme", "1"), ("other", "1"), ("acme", "1"))
    fetch(("acme", "1"), ("acme", "2"), ("acme", "3"))
    assert read == [[("acme", "1"), ("other", "1")], [("acme", "2"), ("acme", "3")]]
    asked = {of: answers.look_up("acme", f"session:{of}", Source("read again")) for of in "123"}
    assert asked == {"1": "1 of acme", "2": "2 of acme", "3": "read again"}
    trusted.clear()
    fetch(("acme", "9"))
    assert len(read) == 2, "not kept, so not read"
