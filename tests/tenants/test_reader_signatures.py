"""A site's server names its reader: for a day, for one tenant and key."""

import hashlib
import hmac
from datetime import UTC, datetime, timedelta

from tenants.credentials import ValidKey
from tenants.reader_signatures import ReaderSignatures

NOW = datetime(2026, 3, 10, 12, tzinfo=UTC)
KEY = ValidKey("acme", "pk_acme_x", frozenset(), "salt")
OURS = ReaderSignatures("x" * 40)


def signature(at: datetime, *, tenant: str = "acme", user: str = "ada", salt: str = "salt") -> str:
    """As the guide tells sites to compute it."""
    secret, seconds = OURS.secret_of(KEY.key_id, salt), int(at.timestamp())
    return (
        f"{seconds}." + hmac.new(secret.encode(), f"{tenant}\n{user}\n{seconds}".encode(), hashlib.sha256).hexdigest()
    )


def is_valid(given: str, user: str = "ada") -> bool:
    return OURS.is_valid(KEY, user, given, now=NOW)


def test_a_signature_is_valid_for_a_day_for_its_reader_tenant_and_secret() -> None:
    assert is_valid(signature(NOW))
    assert is_valid(signature(NOW - timedelta(hours=23)))
    assert is_valid(signature(NOW + timedelta(minutes=4)))
    for wrong in (
        signature(NOW - timedelta(hours=24)),
        signature(NOW + timedelta(minutes=6)),
        signature(NOW, user="bob"),
        signature(NOW, tenant="other"),
        signature(NOW, salt="another"),
        signature(NOW)[:-1],
        signature(NOW).upper(),
        "1." + signature(NOW).split(".")[1],
        "",
        "." * 100,
    ):
        assert not is_valid(wrong), wrong
    assert not is_valid(signature(NOW), user="bob")


def test_every_key_salt_and_service_has_another_secret() -> None:
    secrets = {OURS.secret_of(*of) for of in (("a", ""), ("b", ""), ("a", "s"))} | {
        ReaderSignatures("y" * 40).secret_of("a", "")
    }
    assert len(secrets) == 4
