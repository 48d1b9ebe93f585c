"""Passwords: argon2id, with bounded concurrency and memory, shared fairly by the tenants.

Hashing is slow on purpose. It releases the interpreter, and at most `MAX_RUNNING` run in a process, so that a
flood of logins does not delay other requests. Tenants are served in turn (`tenants.shares`), and the known callers of
each apart from its others, so that a flood does not keep out other logins either, not even those at its own tenant. A
login that would wait too long is refused.

A hash needs 19 MB, which the C library keeps for the thread that has allocated it. So hashes are computed by as many
threads as may run, and not by those of the requests: a process of 160 threads grew by 300 MB.
"""

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from tenants.errors import Invalid, Unavailable
from tenants.password_strength import require_strong
from tenants.shares import NOBODY, TenantBusy, TenantShare

MIN_CHARS = 10
MAX_CHARS = 256
MAX_RUNNING = min(4, max(1, (os.cpu_count() or 2) // 2))
# Each of them has a thread of a request. A hash takes some 30 ms, so the last of them waits for less than WAIT_S.
MAX_WAITING = 48
WAIT_S = 3.0

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Party:
    """Who waits together: a tenant's known callers, or its others. Without a tenant: whoever names none that exists."""

    tenant_id: str = ""
    is_known: bool = False

    @property
    def name(self) -> str:
        return f"{self.tenant_id} known" if self.is_known else self.tenant_id


class PasswordsBusy(Unavailable):
    code = "overloaded"
    title = "Too many passwords are being checked: try again in a moment"


NO_TENANT = Party()
# OWASP's recommendation for argon2id.
_hasher = PasswordHasher(time_cost=2, memory_cost=19 * 1024, parallelism=1)
# Its callers are the parties.
_slots = TenantShare(MAX_RUNNING, max_waiting=MAX_WAITING, wait_s=WAIT_S)


def hash_new(password: str, about: Iterable[str | None], *, party: Party = NO_TENANT, field: str = "password") -> str:
    """The hash of a password that a user chose. Invalid if it is easily guessed with these words about the user."""
    check_length(password, field=field)

    def work() -> str:
        require_strong(password, about, field=field)
        return _hasher.hash(password)

    return _in_pool(work, party)


def hash_password(password: str, *, party: Party = NO_TENANT) -> str:
    """The hash of a password that was generated, or is the user's already."""
    check_length(password)
    return _in_pool(lambda: _hasher.hash(password), party)


def verify_password(stored: str | None, password: str, *, party: Party = NO_TENANT) -> bool:
    """Whether the password is right. Without a stored hash it does the same work and returns False."""
    try:
        matches = _in_pool(lambda: _hasher.verify(stored or _dummy_hash(), password), party)
    except (VerificationError, InvalidHashError):
        return False
    return matches and stored is not None


def needs_rehash(stored: str) -> bool:
    return _hasher.check_needs_rehash(stored)


def check_length(password: str, *, field: str = "password") -> None:
    if not MIN_CHARS <= len(password) <= MAX_CHARS:
        raise Invalid.field(field, f"{MIN_CHARS} to {MAX_CHARS} characters")


@cache
def _dummy_hash() -> str:
    return _hasher.hash("nobody has this password")


def _in_pool(work: Callable[[], Answer], party: Party) -> Answer:
    """Run this in a thread that hashes, once it is this party's turn."""
    try:
        _slots.acquire(NOBODY, party.name)
    except TenantBusy:
        raise PasswordsBusy(retry_after_s=1) from None
    try:
        return _threads_of(os.getpid()).submit(work).result()
    finally:
        _slots.release(NOBODY, party.name)


@cache
def _threads_of(_pid: int) -> ThreadPoolExecutor:
    """This process's. A fork has none of its parent's threads."""
    return ThreadPoolExecutor(MAX_RUNNING, thread_name_prefix="passwords")
