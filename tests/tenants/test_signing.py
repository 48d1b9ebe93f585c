"""Signing keys: published before they sign, encrypted, rotated by age; and the tokens that they sign."""

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import jwt as pyjwt
import pytest
from flask import Flask
from flask.testing import FlaskClient
from sqlalchemy import text

from app.http.services import services_of
from app.settings import Settings
from tenants import signing
from tenants.db import owner_tx, platform_tx, run_together, utcnow
from tenants.pipelines import BEGIN, COMMIT
from tenants.signing import MAX_TOKEN_TTL_S, BadToken, Signer
from tests.people import Caller, client_of
from tests.service import blocked_connections, eventually


@pytest.fixture
def caller(client: FlaskClient, tenant: str) -> Caller:
    return client_of(client, tenant, "stats:read")


def kid_of(token: str) -> str:
    return str(pyjwt.get_unverified_header(token)["kid"])


def test_a_token_is_verified_by_its_issuer_only_and_until_it_expires(app: Flask, settings: Settings) -> None:
    signer = services_of(app).signer
    claims = {"sub": "x", "tenant": "y"}
    token = signer.sign(claims, ttl_s=60, now=utcnow())
    assert claims.items() <= signer.verify(token).items()
    wrong = {
        "another issuer": Signer(issuer="https://other.example", secret_key=settings.secret_key or "").sign(
            claims, ttl_s=60, now=utcnow()
        ),
        "expired": signer.sign(claims, ttl_s=60, now=utcnow() - timedelta(seconds=66)),
        "no tenant": signer.sign({"sub": "x"}, ttl_s=60, now=utcnow()),
        "another signature": token[:-6] + "AAAAAA",
    }
    for why, bad in wrong.items():
        with pytest.raises(BadToken):
            pytest.fail(f"{why}: {signer.verify(bad)}")


def test_no_token_is_valid_for_longer_than_an_hour(app: Flask) -> None:
    """A retired key is published for an hour: a longer token could not be verified to its end."""
    signer, now = services_of(app).signer, utcnow()
    claims = signer.verify(signer.sign({"sub": "x", "tenant": "y"}, ttl_s=10**6, now=now))
    assert claims["exp"] - claims["iat"] == MAX_TOKEN_TTL_S


def test_a_mac_proves_that_this_service_issued_a_text(settings: Settings) -> None:
    secret = settings.secret_key or ""
    ours = Signer(issuer="https://a.example", secret_key=secret)
    assert ours.mac("text") == Signer(issuer="https://b.example", secret_key=secret).mac("text")
    assert len({ours.mac("text"), ours.mac("text2"), Signer(issuer="x", secret_key="other").mac("text")}) == 3


def test_rotation_breaks_no_valid_token_and_both_keys_are_published(
    app: Flask, settings: Settings, caller: Caller
) -> None:
    signer = services_of(app).signer
    before = {key["kid"] for key in caller.http.get("/.well-known/jwks.json").get_json()["keys"]}
    kid = signer.rotate(now=utcnow())
    published = {key["kid"] for key in caller.http.get("/.well-known/jwks.json").get_json()["keys"]}
    assert published == before | {kid}
    assert kid_of(signer.sign({}, ttl_s=60, now=utcnow())) in before, "published first, used later"
    assert caller("GET", "/api/v1/me").status_code == 200

    # A quarter of an hour later the new one signs, and another process, which knew only the old one, finds it.
    another = Signer(issuer=settings.public_url, secret_key=settings.secret_key or "")
    another.jwks()
    with owner_tx() as tx:
        tx.execute(text("UPDATE signing_keys SET activates_at = activates_at - interval '1 hour'"))
        tx.execute(
            text("UPDATE signing_keys SET retires_at = retires_at - interval '15 minutes' WHERE retires_at IS NOT NULL")
        )
    fresh = Signer(issuer=settings.public_url, secret_key=settings.secret_key or "")
    claims = {"sub": "x", "tenant": "y"}
    token = fresh.sign(claims, ttl_s=60, now=utcnow())
    assert kid_of(token) == kid
    assert another.verify(token)["sub"] == "x"
    assert caller("GET", "/api/v1/me").status_code == 200, "the old key is published as long as its tokens live"


def test_a_verified_token_goes_with_its_key_and_with_its_time(
    settings: Settings, connected: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    signer = Signer(issuer=settings.public_url, secret_key="a secret of this test's own, long enough")
    token = signer.sign({"sub": "x", "tenant": "y"}, ttl_s=60, now=utcnow())
    assert signer.verify(token) is signer.verify(token), "kept"
    assert token.encode() not in repr(signer._verified._values).encode()
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 66)
    with pytest.raises(BadToken):
        signer.verify(token)
    monkeypatch.setattr(time, "time", real)
    signer.verify(token)
    with owner_tx() as tx:
        tx.execute(text("DELETE FROM signing_keys WHERE kid = :kid"), {"kid": kid_of(token)})
    signer._loaded = None  # the keys are read again every minute
    with pytest.raises(BadToken):
        signer.verify(token)
    with owner_tx() as tx:
        tx.execute(text("DELETE FROM signing_keys WHERE kid = :kid"), {"kid": signer.jwks()[-1]["kid"]})


def test_verified_tokens_are_bounded(settings: Settings, connected: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signing, "_MAX_CACHED_TOKENS", 3)
    signer = Signer(issuer=settings.public_url, secret_key=settings.secret_key or "")
    for number in range(6):
        signer.verify(signer.sign({"sub": str(number), "tenant": "y"}, ttl_s=60, now=utcnow()))
    assert len(signer._verified) == 3


def test_a_tenant_with_many_tokens_makes_us_forget_its_own_only(
    settings: Settings, connected: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signing, "_MAX_CACHED_TOKENS_OF_TENANT", 3)
    signer = Signer(issuer=settings.public_url, secret_key=settings.secret_key or "")
    neighbour = signer.sign({"sub": "x", "tenant": "quiet"}, ttl_s=60, now=utcnow())
    claims = signer.verify(neighbour)
    for number in range(6):
        signer.verify(signer.sign({"sub": str(number), "tenant": "busy"}, ttl_s=60, now=utcnow()))
    assert signer.verify(neighbour) is claims
    assert len(signer._verified) == 4


def test_private_keys_are_sealed_and_a_lost_secret_makes_a_new_key(app: Flask, settings: Settings) -> None:
    signer = services_of(app).signer
    signer.jwks()
    with platform_tx() as tx:
        stored = list(tx.execute(text("SELECT private_key FROM signing_keys")).scalars())
    assert stored
    assert not any(b'"d"' in bytes(row) for row in stored)
    stranger = Signer(issuer=settings.public_url, secret_key="another secret of some length " * 2)
    token = stranger.sign({"sub": "x", "tenant": "y"}, ttl_s=60, now=utcnow())
    assert stranger.verify(token)["sub"] == "x"
    with owner_tx() as tx:
        tx.execute(text("DELETE FROM signing_keys WHERE kid = :kid"), {"kid": kid_of(token)})


def test_a_key_is_rotated_when_it_is_a_month_old_and_only_once(app: Flask, settings: Settings) -> None:
    signer = Signer(issuer=settings.public_url, secret_key=settings.secret_key or "")
    signer.jwks()
    assert signer.rotate_if_due(now=utcnow()) is None
    later = utcnow() + timedelta(days=31)
    with ThreadPoolExecutor(2) as processes, platform_tx() as tx:
        signing.lock_keys(tx)
        rotations = [processes.submit(signer.rotate_if_due, now=later) for _ in range(2)]
        eventually(lambda: blocked_connections(settings.database_url or "") == 2)
        run_together(tx.raw, COMMIT, BEGIN)
        assert [rotation.result() for rotation in rotations].count(None) == 1, "of two at once, the second has no work"
    assert signer.rotate_if_due(now=later) is None
    with owner_tx() as tx:
        tx.execute(text("DELETE FROM signing_keys"))
