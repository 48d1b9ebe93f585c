"""Passwords: argon2id, never more at once than the process can bear."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from argon2 import PasswordHasher
from flask.testing import FlaskClient

from tenants import passwords, users
from tenants.db import tenant_tx
from tenants.errors import Invalid
from tenants.passwords import Party, PasswordsBusy
from tenants.shares import NOBODY, TenantShare
from tests.people import PASSWORD, open_signup
from tests.service import eventually

ROOT = Path(__file__).parents[2]

PRODUCTION_HASHER = passwords._hasher  # before the tests put a quick one in its place


def test_a_flood_of_logins_is_bounded_in_each_process(monkeypatch: pytest.MonkeyPatch) -> None:
    slots = TenantShare(1, max_waiting=0)
    monkeypatch.setattr(passwords, "_slots", slots)
    with slots.of(NOBODY, ""):
        for work in (passwords.hash_password, partial(passwords.hash_new, about=[])):
            with pytest.raises(PasswordsBusy):
                work(PASSWORD)
        with pytest.raises(PasswordsBusy):
            passwords.verify_password(None, PASSWORD)
    assert passwords.hash_password(PASSWORD)


def _are_waiting(tenant: Any, wanted: int) -> bool:
    return bool(tenant.waiting == wanted)


def test_a_tenants_flood_delays_other_tenants_and_its_own_known_callers_by_one_password(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slots = TenantShare(1, max_waiting=40, wait_s=60)
    monkeypatch.setattr(passwords, "_slots", slots)
    order: list[Party] = []

    def check(party: Party) -> None:
        passwords._in_pool(lambda: order.append(party), party)

    flooded, known, other = Party("a"), Party("a", is_known=True), Party("b")
    with ThreadPoolExecutor(30) as callers, slots.of(NOBODY, "first"):
        for number, party in enumerate([flooded] * 20 + [known, other] + [flooded] * 5, 1):
            callers.submit(check, party)
            eventually(partial(_are_waiting, slots._tenants[NOBODY], number), every_s=0.001)
    assert len(order) == 27
    assert {known, other} <= {*order[:3]}


def test_a_password_that_a_user_chooses_must_be_strong_and_one_that_exists_need_not_be() -> None:
    with pytest.raises(Invalid) as refused:
        passwords.hash_new("ada_lovelace1", ["ada_lovelace"], field="new")
    assert list(refused.value.errors or {}) == ["new"]
    assert passwords.verify_password(passwords.hash_new(PASSWORD, ["ada_lovelace"]), PASSWORD)
    assert passwords.verify_password(passwords.hash_password("password123"), "password123")


def test_a_fork_hashes_in_threads_of_its_own() -> None:
    code = """
import os
from tenants import passwords
stored = passwords.hash_password("correct horse battery")
if os.fork() == 0:
    os._exit(0 if passwords.verify_password(stored, "correct horse battery") else 1)
print(os.waitstatus_to_exitcode(os.wait()[1]))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "0\n"


def test_passwords_are_argon2id(client: FlaskClient, tenant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passwords, "_hasher", PRODUCTION_HASHER)
    body = {"tenant": open_signup(tenant), "username": "ada_l", "email": "ada@example.org", "password": PASSWORD}
    assert client.post("/api/v1/auth/register", json=body).status_code == 201
    with tenant_tx(tenant) as tx:
        user = users.by_username(tx, "ada_l")
        assert user is not None
        kind, version, parameters = (user.password_hash or "").split("$")[1:4]
    assert (kind, version, parameters) == ("argon2id", "v=19", "m=19456,t=2,p=1"), "as OWASP recommends"


def test_only_the_right_password_of_a_stored_hash_is_right() -> None:
    stored = passwords.hash_password(PASSWORD)
    assert passwords.verify_password(stored, PASSWORD)
    for wrong in (None, "", "no hash at all", passwords.hash_password(PASSWORD + "!")):
        assert not passwords.verify_password(wrong, PASSWORD), wrong
    assert not passwords.verify_password(None, "nobody has this password"), "whose hash stands in for a missing one"


def test_a_hash_with_older_parameters_must_be_computed_again() -> None:
    older = PasswordHasher(time_cost=1, memory_cost=16, parallelism=1).hash(PASSWORD)
    assert passwords.needs_rehash(older)
    assert not passwords.needs_rehash(passwords.hash_password(PASSWORD))


@pytest.mark.parametrize("chars", [passwords.MIN_CHARS - 1, passwords.MAX_CHARS + 1])
def test_too_short_and_too_long_passwords_are_not_hashed(chars: int) -> None:
    with pytest.raises(Invalid) as refused:
        passwords.hash_password("x" * chars)
    assert list(refused.value.errors or {}) == ["password"]
