"""Passwords: argon2id, a few at a time.

Hashing is slow on purpose. It releases the interpreter, and at most `AT_ONCE` run in a process, so that a flood of
logins does not hold up anybody's other requests; those who would wait too long are told to come back.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from tenants.errors import Invalid, Unavailable

LEAST_LENGTH = 10
MOST_LENGTH = 256
AT_ONCE = max(1, (os.cpu_count() or 2) // 2)
MOST_WAITING = 8
WAIT_S = 3.0

# OWASP's recommendation for argon2id.
_hasher = PasswordHasher(time_cost=2, memory_cost=19 * 1024, parallelism=1)
_running = threading.BoundedSemaphore(AT_ONCE)
_waiting = threading.BoundedSemaphore(AT_ONCE + MOST_WAITING)


class PasswordsBusy(Unavailable):
    code = "overloaded"
    title = "Too many passwords are being checked"


def hash_password(password: str) -> str:
    check_length(password)
    with _turn():
        return _hasher.hash(password)


def verify_password(stored: str | None, password: str) -> bool:
    """Whether it is the right one. Without a stored hash the same work is done, and the answer is no."""
    with _turn():
        try:
            matches = _hasher.verify(stored or _nobodys(), password)
        except (VerificationError, InvalidHashError):
            return False
        return matches and stored is not None


def needs_rehash(stored: str) -> bool:
    return _hasher.check_needs_rehash(stored)


def check_length(password: str) -> None:
    if not LEAST_LENGTH <= len(password) <= MOST_LENGTH:
        raise Invalid.field("password", f"{LEAST_LENGTH} to {MOST_LENGTH} characters")


@cache
def _nobodys() -> str:
    return _hasher.hash("nobody has this password")


@contextmanager
def _turn() -> Iterator[None]:
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
