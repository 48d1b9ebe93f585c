"""Passwords: argon2id, with bounded concurrency and memory.

Hashing is slow on purpose. It releases the interpreter, and at most `MAX_RUNNING` run in a process, so that a
flood of logins does not delay other requests; a login that would wait too long is refused.

A hash needs 19 MB, which the C library keeps for the thread that has allocated it. So hashes are computed by as many
threads as may run, and not by those of the requests: a process of 160 threads grew by 300 MB.
"""

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import TypeVar

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from tenants.errors import Invalid, Unavailable

MIN_CHARS = 10
MAX_CHARS = 256
MAX_RUNNING = min(4, max(1, (os.cpu_count() or 2) // 2))
MAX_WAITING = 8
WAIT_S = 3.0

Answer = TypeVar("Answer")

# OWASP's recommendation for argon2id.
_hasher = PasswordHasher(time_cost=2, memory_cost=19 * 1024, parallelism=1)
_running = threading.BoundedSemaphore(MAX_RUNNING)
_waiting = threading.BoundedSemaphore(MAX_RUNNING + MAX_WAITING)


class PasswordsBusy(Unavailable):
    code = "overloaded"
    title = "Too many passwords are being checked"


def hash_password(password: str) -> str:
    check_length(password)
    return _in_pool(lambda: _hasher.hash(password))


def verify_password(stored: str | None, password: str) -> bool:
    """Whether the password is right. Without a stored hash it does the same work and returns False."""
    try:
        matches = _in_pool(lambda: _hasher.verify(stored or _dummy_hash(), password))
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


def _in_pool(work: Callable[[], Answer]) -> Answer:
    """Run this in a thread that hashes, once there is a slot for it."""
    with _hashing_slot():
        return _threads_of(os.getpid()).submit(work).result()


@cache
def _threads_of(_pid: int) -> ThreadPoolExecutor:
    """This process's. A fork has none of its parent's threads."""
    return ThreadPoolExecutor(MAX_RUNNING, thread_name_prefix="passwords")


@contextmanager
def _hashing_slot() -> Iterator[None]:
    if not _waiting.acquire(blocking=False):
        raise PasswordsBusy
    try:
        if not _running.acquire(timeout=WAIT_S):
            raise PasswordsBusy
        try:
            yield
        finally:
            _running.release()
    finally:
        _waiting.release()
