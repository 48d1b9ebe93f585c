"""The keys that sign access tokens, and the tokens themselves.

Keys are asymmetric (ES256), stored in PostgreSQL with the private part encrypted with PLAUDIT_SECRET_KEY, and
published as a JWKS. A new key is published for a while before it signs, and an old one until the last token it signed
has expired: a rotation breaks no token, for any verifier that reads the JWKS every few minutes.
"""

import base64
import hashlib
import hmac
import secrets
import threading
import time
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import orjson
from cryptography.fernet import Fernet, InvalidToken
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, KeySet
from sqlalchemy import LargeBinary, delete, func, select, text, update
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from tenants.db import Base, Tx, current_tx, platform_tx, utcnow
from tenants.errors import Unauthenticated
from tenants.fair_cache import FairCache, Groups
from tenants.waiting import require_may_wait

ALGORITHM = "ES256"
AUDIENCE = "plaudit"
MAX_TOKEN_TTL_S = 3600
CLOCK_LEEWAY_S = 5
# How long a new key is published before it signs: longer than verifiers cache a JWKS.
PUBLISHED_AHEAD = timedelta(minutes=15)
ROTATE_AFTER = timedelta(days=30)
RELOAD_AFTER_S = 60.0
# An unknown key id makes us reload the keys, at most this often: anyone can send one.
RELOAD_UNKNOWN_AFTER_S = 2.0
_CREATE_LOCK = 7_526_103_842
_MAX_CACHED_TOKENS = 10_000
_MAX_CACHED_TOKENS_OF_TENANT = _MAX_CACHED_TOKENS // 2


class SigningKey(Base):
    __tablename__ = "signing_keys"

    kid: Mapped[str] = mapped_column(primary_key=True)
    private_key: Mapped[bytes] = mapped_column(LargeBinary)
    public_jwk: Mapped[dict[str, Any]] = mapped_column(JSONB)
    created_at: Mapped[datetime]
    activates_at: Mapped[datetime]
    retires_at: Mapped[datetime | None]


class BadToken(Unauthenticated):
    code = "invalid_token"
    title = "The access token is not valid"


@dataclass(frozen=True)
class _Loaded:
    signer: ECKey
    verifiers: KeySet
    published: list[dict[str, Any]]
    kids: frozenset[str]
    at: float


@dataclass(frozen=True, slots=True)
class _Verified:
    """A token whose signature and claims were checked. Only its key and the time can change that."""

    claims: dict[str, Any]
    kid: str


class Signer:
    """Signs and verifies for one issuer. Caches the keys for this process."""

    def __init__(self, *, issuer: str, secret_key: str) -> None:
        self.issuer = issuer
        self._box = Fernet(base64.urlsafe_b64encode(hashlib.sha256(secret_key.encode()).digest()))
        self._mac_key = hashlib.sha256(b"mac:" + secret_key.encode()).digest()
        self._lock = threading.Lock()
        self._loaded: _Loaded | None = None
        # By the token's hash: a token in memory for an hour could be read from a core dump.
        self._verified: FairCache[bytes, _Verified] = FairCache(_groups_of)
        self._claims = jwt.JWTClaimsRegistry(
            leeway=CLOCK_LEEWAY_S,
            iss={"essential": True, "value": issuer},
            aud={"essential": True, "value": AUDIENCE},
            exp={"essential": True},
            sub={"essential": True},
            tenant={"essential": True},
        )

    def load(self) -> None:
        """Read the keys, if due. Call it before a transaction that signs: a request has one connection only."""
        self._keys()

    def key_ids(self) -> frozenset[str]:
        """Of the present keys: what was verified with others may be of a key that is published no more."""
        return self._keys().kids

    def sign(self, claims: dict[str, Any], *, ttl_s: int, now: datetime) -> str:
        """An access token with these claims, valid at once."""
        issued_at = int(now.timestamp())
        key = self._keys().signer
        standard = {
            "iss": self.issuer,
            "aud": AUDIENCE,
            "iat": issued_at,
            "nbf": issued_at,
            "exp": issued_at + min(ttl_s, MAX_TOKEN_TTL_S),
            "jti": secrets.token_urlsafe(16),
        }
        return jwt.encode({"alg": ALGORITHM, "kid": key.kid, "typ": "at+jwt"}, {**standard, **claims}, key)

    def verify(self, token: str) -> dict[str, Any]:
        """The claims of a token of ours that has not expired. Does not check whether it was revoked."""
        digest = hashlib.sha256(token.encode(errors="surrogatepass")).digest()
        known = self._verified.get(digest)
        if known is not None:
            if known.claims["exp"] > time.time() and known.kid in self._keys().kids:
                return known.claims
            self._verified.forget(digest)
        kid, claims = self._decode(token)
        try:
            self._claims.validate(claims)
        except (JoseError, ValueError, TypeError) as error:
            raise BadToken(f"The access token is not valid: {getattr(error, 'error', 'malformed')}") from None
        self._verified.put(digest, _Verified(claims, kid))
        return claims

    def mac(self, text: str) -> str:
        """A MAC that proves that we issued this text, checked before a token is looked up."""
        return hmac.new(self._mac_key, text.encode(), hashlib.sha256).hexdigest()[:32]

    def jwks(self) -> list[dict[str, Any]]:
        return self._keys().published

    def rotate(self, *, now: datetime) -> str:
        """Publish a new key, which signs later; retire the older ones when their tokens have expired."""
        with platform_tx() as tx:
            lock_keys(tx)
            return self._rotate(tx, now=now)

    def rotate_if_due(self, *, now: datetime) -> str | None:
        """Rotate when the newest key is old enough. Safe to run at once: the second finds the key of the first."""
        with platform_tx() as tx:
            lock_keys(tx)
            newest = tx.scalar(select(func.max(SigningKey.created_at)))
            return self._rotate(tx, now=now) if newest is not None and newest <= now - ROTATE_AFTER else None

    def _rotate(self, tx: Tx, *, now: datetime) -> str:
        created = self._create_key(tx, now=now, activates_at=now + PUBLISHED_AHEAD)
        retires_at = created.activates_at + timedelta(seconds=MAX_TOKEN_TTL_S + 60)
        tx.execute(
            update(SigningKey)
            .where(SigningKey.retires_at.is_(None), SigningKey.kid != created.kid)
            .values(retires_at=retires_at)
        )
        tx.execute(delete(SigningKey).where(SigningKey.retires_at < now))
        self._loaded = None
        return created.kid

    def _decode(self, token: str) -> tuple[str, dict[str, Any]]:
        """The id of the key that signed it, and its claims."""
        try:
            kid = _kid_of(token)
            keys = self._keys()
            if kid not in keys.kids:
                keys = self._keys(max_age_s=RELOAD_UNKNOWN_AFTER_S)
            return kid, dict(jwt.decode(token, keys.verifiers, algorithms=[ALGORITHM]).claims)
        except (JoseError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise BadToken from None

    def _keys(self, *, max_age_s: float = RELOAD_AFTER_S) -> _Loaded:
        loaded = self._loaded
        if loaded is not None and (time.monotonic() - loaded.at < max_age_s or current_tx() is not None):
            return loaded
        require_may_wait()  # also for the lock, while another thread reads the keys
        with self._lock:
            loaded = self._loaded
            if loaded is None or time.monotonic() - loaded.at >= max_age_s:
                self._loaded = loaded = self._load(now=utcnow())
            return loaded

    def _load(self, *, now: datetime) -> _Loaded:
        with platform_tx() as tx:
            rows = self._usable(tx, now)
            if not any(row.activates_at <= now and self._decrypt(row) for row in rows):
                lock_keys(tx)
                rows = self._usable(tx, now)
                if not any(row.activates_at <= now and self._decrypt(row) for row in rows):
                    rows = [*rows, self._create_key(tx, now=now, activates_at=now)]
        signers = [(row.activates_at, key) for row in rows if row.activates_at <= now and (key := self._decrypt(row))]
        return _Loaded(
            signer=max(signers, key=lambda pair: pair[0])[1],
            verifiers=KeySet([ECKey.import_key(row.public_jwk) for row in rows]),
            published=[row.public_jwk for row in rows],
            kids=frozenset(row.kid for row in rows),
            at=time.monotonic(),
        )

    @staticmethod
    def _usable(tx: Tx, now: datetime) -> list[SigningKey]:
        usable = SigningKey.retires_at.is_(None) | (SigningKey.retires_at > now)
        return list(tx.scalars(select(SigningKey).where(usable).order_by(SigningKey.created_at)))

    def _create_key(self, tx: Tx, *, now: datetime, activates_at: datetime) -> SigningKey:
        kid = secrets.token_hex(8)
        key = ECKey.generate_key("P-256", {"kid": kid, "use": "sig", "alg": ALGORITHM})
        row = SigningKey(
            kid=kid,
            private_key=self._box.encrypt(orjson.dumps(key.as_dict(private=True))),
            public_jwk=key.as_dict(private=False),
            created_at=now,
            activates_at=activates_at,
            retires_at=None,
        )
        tx.add(row)
        tx.flush()
        return row

    def _decrypt(self, row: SigningKey) -> ECKey | None:
        """The private key; None if it was encrypted with another secret (a restored backup): a new one is created."""
        try:
            return ECKey.import_key(orjson.loads(self._box.decrypt(row.private_key)))
        except InvalidToken:
            return None


def lock_keys(tx: Tx) -> None:
    """Until the transaction ends, nobody else creates a key."""
    tx.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _CREATE_LOCK})


def _groups_of(_digest: bytes, verified: _Verified) -> Groups:
    """The tenant, and all, and how many tokens of each are kept."""
    return ((str(verified.claims["tenant"]),), _MAX_CACHED_TOKENS_OF_TENANT), ((), _MAX_CACHED_TOKENS)


def _kid_of(token: str) -> str:
    head = token.split(".", 1)[0]
    header = orjson.loads(base64.urlsafe_b64decode(head + "=" * (-len(head) % 4)))
    return str(header["kid"])
