"""Idempotency keys: the first answer is stored with its effect, and repeated for a day."""

from datetime import datetime, timedelta

import pytest
from sqlalchemy import text

from tenants import idempotency
from tenants.db import tenant_tx, utcnow
from tenants.errors import Invalid
from tenants.idempotency import KEPT_FOR, MAX_KEPT_BYTES, AnswerNotKept, KeyReused, RequestIdentity, StillRunning


def identity(body: bytes = b"{}", **changes: str) -> RequestIdentity:
    named = {"caller": "client:x", "method": "POST", "path": "/api/v1/keys", "key": "k", "rights": "", **changes}
    return idempotency.identify(body=body, **named)


def keep(tenant: str, *, body: bytes, now: datetime) -> None:
    with tenant_tx(tenant) as tx:
        assert idempotency.earlier_answer(tx, identity(), now=now) is None
        idempotency.keep(tx, identity(), status=201, headers={"ETag": "1"}, body=body, now=now)


def test_the_answer_is_repeated_for_a_day(tenant: str, other_tenant: str) -> None:
    now = utcnow()
    keep(tenant, body=b"done", now=now)
    with tenant_tx(tenant) as tx:
        answer = idempotency.earlier_answer(tx, identity(), now=now + KEPT_FOR)
        assert answer is not None
        assert (answer.status, answer.headers, answer.body) == (201, {"ETag": "1"}, b"done")
    keep(tenant, body=b"done again", now=now + KEPT_FOR + timedelta(seconds=1))
    with tenant_tx(other_tenant) as tx:
        assert idempotency.earlier_answer(tx, identity(), now=now) is None


@pytest.mark.parametrize("other", [{"caller": "client:y"}, {"method": "PATCH"}, {"path": "/"}, {"key": "l"}])
def test_a_request_is_another_by_caller_method_path_or_key(other: dict[str, str]) -> None:
    assert identity(b"{}", **other).request != identity().request
    assert identity(b"[]").request == identity().request


def test_another_body_under_the_same_key_is_refused(tenant: str) -> None:
    keep(tenant, body=b"done", now=utcnow())
    with tenant_tx(tenant) as tx, pytest.raises(KeyReused):
        idempotency.earlier_answer(tx, identity(b"[]"), now=utcnow())


def test_of_a_large_answer_only_the_key_is_stored(tenant: str) -> None:
    keep(tenant, body=b"x" * (MAX_KEPT_BYTES + 1), now=utcnow())
    with tenant_tx(tenant) as tx, pytest.raises(AnswerNotKept):
        idempotency.earlier_answer(tx, identity(), now=utcnow())


def test_an_answer_is_repeated_only_as_durably_as_it_was_given(tenant: str) -> None:
    """A transaction that logs nothing does not wait for a standby: the first commit may be on this server only."""
    keep(tenant, body=b"done", now=utcnow())
    with tenant_tx(tenant) as tx:
        assert idempotency.earlier_answer(tx, identity(), now=utcnow()) is not None
        where_its_rows_are = text("SELECT pg_current_xact_id_if_assigned()::text FROM tenants WHERE id = :tenant")
        assert tx.scalar(where_its_rows_are, {"tenant": tenant}) is not None


def test_a_request_is_refused_while_another_with_its_key_runs(tenant: str) -> None:
    with tenant_tx(tenant, separate=True) as running:
        assert idempotency.earlier_answer(running, identity(), now=utcnow()) is None
        with tenant_tx(tenant, separate=True) as second, pytest.raises(StillRunning):
            idempotency.earlier_answer(second, identity(), now=utcnow())
    with tenant_tx(tenant) as tx:
        assert idempotency.earlier_answer(tx, identity(), now=utcnow()) is None, "the first stored nothing"


@pytest.mark.parametrize("key", ["", "x" * 256, "ü", "a\x00b"])
def test_a_key_is_short_and_printable(key: str) -> None:
    with pytest.raises(Invalid, match="Idempotency-Key"):
        identity(key=key)
