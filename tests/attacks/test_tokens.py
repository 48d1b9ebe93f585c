"""Forged, stolen and stale tokens: 401 each, with the header RFC 6750 asks for."""

import base64
import json
import time
from collections.abc import Callable
from typing import Any

import jwt as pyjwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from flask import Flask
from flask.testing import FlaskClient
from joserfc.jwk import ECKey

from app.http.services import services_of
from tests.people import Caller, client_of

Claims = dict[str, Any]


@pytest.fixture
def caller(client: FlaskClient, tenant: str) -> Caller:
    return client_of(client, tenant, "stats:read")


def parts(token: str) -> tuple[Claims, Claims]:
    header, payload, _ = token.split(".")

    def decode(part: str) -> Claims:
        value: Claims = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
        return value

    return decode(header), decode(payload)


def b64(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def signed(app: Flask, claims: Claims, **header: Any) -> str:
    """A token with our own, right signature: only its claims are wrong."""
    signer = services_of(app).signer
    key = signer._keys().signer
    from joserfc import jwt

    return jwt.encode({"alg": "ES256", "kid": key.kid, "typ": "at+jwt", **header}, claims, key)


def own_key() -> Any:
    return ec.generate_private_key(ec.SECP256R1())


def none_alg(_app: Flask, head: Claims, claims: Claims) -> str:
    return f"{b64({**head, 'alg': 'none'})}.{b64(claims)}."


def hs_with_public_key(app: Flask, head: Claims, claims: Claims) -> str:
    """The public key, which everyone has, used as an HMAC secret."""
    import hashlib
    import hmac

    public = ECKey.import_key(services_of(app).signer.jwks()[0]).as_pem(private=False)
    message = f"{b64({**head, 'alg': 'HS256'})}.{b64(claims)}"
    digest = hmac.new(public, message.encode(), hashlib.sha256).digest()
    return f"{message}.{base64.urlsafe_b64encode(digest).decode().rstrip('=')}"


def embedded_jwk(_app: Flask, head: Claims, claims: Claims) -> str:
    key = own_key()
    jwk = json.loads(pyjwt.algorithms.ECAlgorithm.to_jwk(key.public_key()))
    return pyjwt.encode(claims, key, algorithm="ES256", headers={**head, "jwk": jwk, "jku": "http://127.0.0.1/evil"})


def own_signature(_app: Flask, head: Claims, claims: Claims) -> str:
    return pyjwt.encode(claims, own_key(), algorithm="ES256", headers=head)


def hostile_kid(kid: Any) -> Callable[[Flask, Claims, Claims], str]:
    def make(_app: Flask, head: Claims, claims: Claims) -> str:
        real = pyjwt.encode(claims, own_key(), algorithm="ES256")
        return f"{b64({**head, 'kid': kid})}.{real.split('.', 1)[1]}"

    return make


def with_claims(**changes: Any) -> Callable[[Flask, Claims, Claims], str]:
    def make(app: Flask, _head: Claims, claims: Claims) -> str:
        changed = {**claims, **changes}
        return signed(app, {name: value for name, value in changed.items() if value is not None})

    return make


def flipped_bit(app: Flask, _head: Claims, claims: Claims) -> str:
    token = signed(app, claims)
    payload_at = token.index(".") + 5
    swapped = "A" if token[payload_at] != "A" else "B"
    return token[:payload_at] + swapped + token[payload_at + 1 :]


NOW = int(time.time())


@pytest.mark.parametrize(
    "forge",
    [
        none_alg,
        hs_with_public_key,
        embedded_jwk,
        own_signature,
        flipped_bit,
        hostile_kid("../../etc/passwd"),
        hostile_kid("'; DROP TABLE signing_keys; --"),
        hostile_kid(None),
        hostile_kid(["a"]),
        hostile_kid("x" * 5000),
        with_claims(exp=NOW - 60),
        with_claims(exp=None),
        with_claims(exp="soon"),
        with_claims(nbf=NOW + 86_400),
        with_claims(iat=NOW + 86_400),
        with_claims(aud="another"),
        with_claims(aud=None),
        with_claims(iss="https://evil.example"),
        with_claims(tenant=None),
        with_claims(tenant="nobody-here"),
        with_claims(tenant="'; SELECT 1; --"),
        with_claims(sub="nobody.123"),
        with_claims(kind="root"),
        with_claims(kind="user"),
        with_claims(kind="user", sid="not-a-uuid"),
    ],
)
def test_a_forged_token_is_401(app: Flask, caller: Caller, forge: Callable[[Flask, Claims, Claims], str]) -> None:
    assert caller("GET", "/api/v1/me").status_code == 200
    caller.token = forge(app, *parts(caller.token))
    answer = caller("GET", "/api/v1/me")
    assert answer.status_code == 401, answer.text
    assert answer.content_type == "application/problem+json"
    assert answer.get_json()["code"] == "invalid_token"
    assert answer.headers["WWW-Authenticate"].startswith('Bearer realm="plaudit", error="invalid_token"')


@pytest.mark.parametrize(
    "token", ["", "x", "a.b", "a.b.c", "a.b.c.d.e", "é.é.é", "." * 100, "eyJ9.e30.e30", "A" * 50_000]
)
def test_nonsense_is_401(caller: Caller, token: str) -> None:
    caller.token = token.encode().decode("latin-1")
    assert caller("GET", "/api/v1/me").status_code == 401


def test_another_tenants_token_with_the_tenant_swapped_is_401(app: Flask, caller: Caller, other_tenant: str) -> None:
    _, claims = parts(caller.token)
    caller.token = signed(app, {**claims, "tenant": other_tenant})
    assert caller("GET", "/api/v1/me").status_code == 401


def test_pem_is_never_published(client: FlaskClient) -> None:
    for key in client.get("/.well-known/jwks.json").get_json()["keys"]:
        assert set(key) == {"kty", "crv", "x", "y", "kid", "use", "alg"}
