"""The last use of a static token: written soon, once a minute, and never by the call itself."""

import threading
from datetime import datetime

import pytest

from tenants import static_tokens, token_uses
from tenants.db import tenant_tx, utcnow
from tenants.signing import Signer
from tests.service import eventually

SIGNER = Signer(issuer="https://a.example", secret_key="a secret of these tests' own, long enough")


@pytest.fixture
def token_id(tenant: str) -> str:
    with tenant_tx(tenant) as tx:
        return static_tokens.create(tx, signer=SIGNER, name="x", scopes=["stats:read"], now=utcnow()).row.id


def last_use(tenant: str) -> datetime | None:
    with tenant_tx(tenant) as tx:
        return static_tokens.list_tokens(tx)[0].last_used_at


def test_a_use_is_written_beside_the_call_and_once_a_minute(
    tenant: str, token_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert last_use(tenant) is None
    began = utcnow()
    token_uses.note(tenant, token_id)
    eventually(lambda: (last_use(tenant) or began) > began)
    eventually(lambda: not token_uses._to_write)
    first = last_use(tenant)
    monkeypatch.setattr(token_uses, "_write_all", lambda: pytest.fail("written again"))
    for _ in range(100):
        token_uses.note(tenant, token_id)
    assert last_use(tenant) == first


def test_another_process_that_wrote_it_lately_is_not_repeated(tenant: str, token_id: str) -> None:
    token_uses.note(tenant, token_id)
    eventually(lambda: last_use(tenant) is not None and not token_uses._to_write)
    first = last_use(tenant)
    token_uses._noted.forget((tenant, token_id))  # as in a process that has noted no use
    token_uses.note(tenant, token_id)
    eventually(lambda: not token_uses._to_write)
    assert last_use(tenant) == first


def test_a_use_that_cannot_be_written_harms_nobody(tenant: str, token_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError

    with monkeypatch.context() as patch:
        patch.setattr(token_uses, "tenant_tx", fail)
        token_uses.note(tenant, token_id)
        eventually(lambda: not token_uses._to_write)
    assert last_use(tenant) is None
    token_uses._noted.forget((tenant, token_id))  # a minute later
    token_uses.note(tenant, token_id)
    eventually(lambda: last_use(tenant) is not None)


def test_a_use_whose_thread_cannot_be_started_harms_nobody_either(
    tenant: str, token_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        token_uses.note(tenant, token_id)
    token_uses._noted.forget((tenant, token_id))  # a minute later
    token_uses.note(tenant, token_id)
    eventually(lambda: last_use(tenant) is not None)
