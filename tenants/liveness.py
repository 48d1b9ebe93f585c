"""Whether a credential is still valid, and with which rights: answered from this process's memory.

What was read from PostgreSQL is kept, and dropped when one of the names it depends on changes. Whoever changes
something calls `record` in the transaction of the change: after the commit it is dropped here, and the caller waits
until every other process has dropped it too (`tenants.credential_feed`). While the feed is not trusted, each look-up
reads PostgreSQL and keeps nothing. A look-up that began before a change was applied is never used after it.

Redis only makes it quicker: a message on `CHANNEL` has other processes read the feed at once.
"""

import contextlib
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import orjson
import structlog

from tenants import credential_feed, redis
from tenants.credential_feed import MAX_UNCOMMITTED_S, Change, Feed, boottime
from tenants.db import Tx, current_tx, tenant_tx
from tenants.fair_cache import FairCache, Groups
from tenants.fingerprints import Difference, Fingerprints
from tenants.redis import RedisUnavailable

# Where changes are announced, so that others need not wait for their next read: {"tenant", "names"}.
CHANNEL = "cred-revoked"
# The names of the tenant itself, and of its settings.
TENANT = "tenant"
SETTINGS = "settings"

MAX_ANSWERS = 20_000
MAX_ANSWERS_OF_TENANT = MAX_ANSWERS // 2
MAX_CHANGED_NAMES = 50_000
# A bound for whatever is changed without `record`, such as by hand: as long as a user's access token is valid, so that
# its caller is looked up once. What is kept with a `Basis` may be made of an answer that is as old, and so be twice as
# old.
MAX_AGE_S = 900.0

Value = TypeVar("Value")
# Reads from PostgreSQL: the answer, and the names whose changes end it (besides the tenant's).
Read = Callable[[], tuple[Value, Sequence[str]]]
# The same for several at once, by tenant and what is asked for.
Asked = tuple[str, str]
ReadAll = Callable[[Sequence[Asked]], Sequence[tuple[Value, Sequence[str]]]]

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Answer:
    value: Any
    names: tuple[str, ...]
    # How many changes were applied before it was read.
    sequence: int
    expires_at: float


@dataclass(frozen=True, slots=True)
class Basis:
    """What something that is kept elsewhere depends on: names of a tenant, as of a moment before it was read."""

    tenant_id: str
    names: tuple[str, ...]
    sequence: int
    expires_at: float


class KeptAnswers:
    """Answers by tenant and name. Of those that depend on a changed name, only later ones are used."""

    def __init__(self, is_trusted: Callable[[float], bool], *, clock: Callable[[], float] = boottime) -> None:
        self._is_trusted, self._clock = is_trusted, clock
        self._lock = threading.Lock()
        self._answers: FairCache[Asked, _Answer] = FairCache(_groups_of)
        # tenant → name → the sequence number of its last change
        self._changed: dict[str, dict[str, int]] = {}
        self._changed_names = 0
        self._sequence = 0
        self._all_dropped_at = 0

    def look_up(self, tenant_id: str, name: str, read: Read[Value]) -> Value:
        """The answer under this name; what `read` returns, if none is kept or memory is not trusted."""
        now = self._clock()
        if not self._is_trusted(now):
            return read()[0]
        kept = self._usable(tenant_id, name, now)
        if kept is not None:
            value: Value = kept.value
            return value
        sequence = self._sequence
        value, names = read()
        if current_tx() is None:  # an open transaction may see what it has not committed
            self._answers.put((tenant_id, name), _Answer(value, (*names, TENANT), sequence, now + MAX_AGE_S))
        return value

    def fetch(self, wanted: Iterable[Asked], name_of: Callable[[str], str], read: ReadAll[Value]) -> None:
        """Have what `look_up` would answer in memory, if it is trusted; `read` is given what is not there."""
        now = self._clock()
        if not self._is_trusted(now) or current_tx() is not None:
            return
        missing = [asked for asked in dict.fromkeys(wanted) if self._usable(asked[0], name_of(asked[1]), now) is None]
        sequence = self._sequence
        for (tenant_id, of), (value, names) in zip(missing, read(missing) if missing else (), strict=True):
            self._answers.put((tenant_id, name_of(of)), _Answer(value, (*names, TENANT), sequence, now + MAX_AGE_S))

    def _usable(self, tenant_id: str, name: str, now: float) -> _Answer | None:
        kept = self._answers.get((tenant_id, name))
        is_usable = kept is not None and kept.expires_at > now and self._has_not_changed(tenant_id, kept)
        return kept if is_usable else None

    def moment(self) -> tuple[int, float]:
        """For a `Basis`: the changes so far, and until when what is read from now on may be used."""
        return self._sequence, self._clock() + MAX_AGE_S

    def is_current(self, basis: Basis) -> bool:
        """Whether nothing of it has changed, as far as memory is trusted."""
        now = self._clock()
        return self._is_trusted(now) and basis.expires_at > now and self._has_not_changed(basis.tenant_id, basis)

    def apply(self, change: Change) -> None:
        """What depends on the changed names is not used any more."""
        with self._lock:
            number = self._sequence + 1
            of_tenant = self._changed.setdefault(change.tenant_id, {})
            before = len(of_tenant)
            of_tenant.update(dict.fromkeys(change.names, number))
            # Last: who reads this number must find the names, or would keep an answer from before the change.
            self._sequence = number
            self._changed_names += len(of_tenant) - before
            is_full = self._changed_names > MAX_CHANGED_NAMES
        if is_full:
            self.drop_all()

    def drop_all(self) -> None:
        with self._lock:
            number = self._sequence + 1
            self._all_dropped_at = number
            self._changed, self._changed_names = {}, 0
            self._answers.clear()
            self._sequence = number  # last, as above

    def _has_not_changed(self, tenant_id: str, kept: _Answer | Basis) -> bool:
        if kept.sequence < self._all_dropped_at:
            return False
        changed = self._changed.get(tenant_id)
        if changed is not None:
            for name in kept.names:
                if changed.get(name, 0) > kept.sequence:
                    return False
        return True


def _groups_of(asked: Asked, _answer: _Answer) -> Groups:
    """The tenant, and all, and how many answers of each are kept."""
    return ((asked[0],), MAX_ANSWERS_OF_TENANT), ((), MAX_ANSWERS)


def look_up(tenant_id: str, name: str, read: Read[Value]) -> Value:
    """What `read` returns for this name of the tenant, from memory if it is known there."""
    return _answers.look_up(tenant_id, name, read)


def fetch(wanted: Iterable[Asked], name_of: Callable[[str], str], read: ReadAll[Value]) -> None:
    """Have the answers to these in memory: what `look_up` would read one by one, by the name of each."""
    _answers.fetch(wanted, name_of, read)


def moment() -> tuple[int, float]:
    """To be read before what is kept with a `Basis`: its `sequence` and `expires_at`."""
    return _answers.moment()


def is_current(basis: Basis) -> bool:
    """Whether what is kept with this basis may still be used."""
    return _answers.is_current(basis)


def is_trusted() -> bool:
    """Whether anything is answered from memory at the moment."""
    return _is_trusted(boottime())


def record(tx: Tx, names: Iterable[str], *, tenant_id: str | None = None) -> None:
    """What is known under these names changes with this transaction: nobody answers from memory after its commit.

    The commit's caller waits for the other processes. All changes of a transaction are announced together.
    """
    changed = sorted(set(names))
    if not changed:
        return
    recorded: list[Change] | None = tx.info.get("credential_changes")
    if recorded is None:
        recorded = tx.info["credential_changes"] = []
        written_at, to_announce = boottime(), recorded
        tx.after_commit(lambda: _announce(to_announce, written_at=written_at))
    recorded.append(credential_feed.insert(tx, tenant_id or tx.tenant, changed))


def watch(call: Callable[[Change], None]) -> None:
    """Call this with every change that this process applies, its own included."""
    _feed.start()
    _watchers.append(call)


def poll_soon() -> None:
    """Read the feed at once, as a message on `CHANNEL` asks."""
    _feed.poll_soon()


def register_as(kind: str, fingerprints: Fingerprints) -> None:
    """What this process is listed as, and what it must have in common with the others that are."""
    _feed.kind, _feed.fingerprints = kind, fingerprints


def start() -> None:
    """Be listed from now on, and not only from the first look-up."""
    _feed.start()


def difference() -> Difference | None:
    """In what this process differs from those that were started before it: then it must answer nobody."""
    return _feed.difference


def compare(*, within_s: float) -> bool:
    """Whether this process has compared itself with the others, once at least; waits for the first time."""
    _feed.start()
    return _feed.has_compared.wait(within_s)


def _announce(changes: list[Change], *, written_at: float) -> None:
    committed_at = boottime()
    if committed_at - written_at > MAX_UNCOMMITTED_S:
        changes = [_write_again(change) for change in changes]
        committed_at = boottime()
    for change in changes:
        _apply(change)
    _feed.mark_applied(changes)
    # In a thread, since Redis may hang.
    publishing = threading.Thread(target=_publish, args=(changes,), name="announce", daemon=True)
    _feed.wait_for_others(changes, committed_at=committed_at, hasten=publishing.start)


def _write_again(change: Change) -> Change:
    """Write it with the present time: its transaction was so long that others may not read the first row."""
    with tenant_tx(change.tenant_id) as tx:
        return credential_feed.insert(tx, change.tenant_id, change.names)


def _publish(changes: Iterable[Change]) -> None:
    if not redis.is_configured():
        return
    with contextlib.suppress(RedisUnavailable), redis.boards().client() as client:
        for change in changes:
            client.publish(CHANNEL, orjson.dumps({"tenant": change.tenant_id, "names": change.names}))


def _apply(change: Change) -> None:
    _answers.apply(change)
    for call in _watchers:
        try:
            call(change)
        except Exception:
            log.exception("a watcher of credential changes failed", action="credentials.watcher")


_watchers: list[Callable[[Change], None]] = []


def _is_trusted(now: float) -> bool:
    if _feed.is_trusted(now):
        return True
    _feed.start()
    return False


_answers = KeptAnswers(_is_trusted)
_feed = Feed(_apply, _answers.drop_all)
