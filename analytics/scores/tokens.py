"""Action tokens: a tenant's app vouches for what one of its users did. Bound to user, action, object and points.

`at_<key id>.<claims>.<mac>`. Keys are derived from the service's secret, one for each month, so they rotate by
themselves; a token lives for a day at most.
"""

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta

import orjson
from sqlalchemy import Index
from sqlalchemy.orm import Mapped, mapped_column

from tenants.db import Base, DeletedWithTenant
from tenants.errors import Forbidden

MAX_LIFETIME = timedelta(days=1)
# For so long a used token gets its first answer again; an unused one has long expired.
REPLAYED_FOR = timedelta(days=400)


class ConsumedToken(DeletedWithTenant, Base):
    """A token that was used. Its ledger entry says so for ever; this row goes when the token has expired."""

    __tablename__ = "consumed_tokens"
    __table_args__ = (Index("ix_consumed_tokens_expires_at", "expires_at"),)

    token_id: Mapped[str] = mapped_column(primary_key=True)
    expires_at: Mapped[datetime]


class BadActionToken(Forbidden):
    code = "invalid_action_token"
    title = "The action token is not valid"


class ActionTokenExpired(BadActionToken):
    code = "action_token_expired"
    title = "The action token has expired"


@dataclass(frozen=True)
class Claims:
    id: str
    tenant: str
    user: str
    action: str
    object: str | None
    most: int
    expires: int

    @property
    def expires_at(self) -> datetime:
        return datetime.fromtimestamp(self.expires, UTC)


class ActionTokens:
    """Issues action tokens, and verifies them."""

    def __init__(self, secret_key: str) -> None:
        self._secret = secret_key.encode()

    def issue(
        self,
        *,
        tenant_id: str,
        user_id: str,
        action: str,
        object_: str | None,
        max_points: int,
        expires_at: datetime,
        now: datetime,
    ) -> str:
        claims = Claims(
            secrets.token_urlsafe(16), tenant_id, user_id, action, object_, max_points, int(expires_at.timestamp())
        )
        body = f"{_key_id(now)}.{_pack(orjson.dumps(asdict(claims)))}"
        return f"at_{body}.{self._mac(_key_id(now), body)}"

    def verify(self, token: str, *, now: datetime) -> Claims:
        """The claims of a token that we issued. Whether it expired, or was used, is not checked here."""
        kid, _, rest = token.removeprefix("at_").partition(".")
        packed, _, mac = rest.partition(".")
        is_known_key = re.fullmatch(r"[0-9]{6}", kid) and _key_id(now - REPLAYED_FOR) <= kid <= _key_id(now)
        if not token.startswith("at_") or not token.isascii() or not is_known_key:
            raise BadActionToken
        if not hmac.compare_digest(mac, self._mac(kid, f"{kid}.{packed}")):
            raise BadActionToken
        try:
            return Claims(**orjson.loads(base64.b64decode(packed + "=" * (-len(packed) % 4), altchars=b"-_")))
        except (binascii.Error, ValueError, TypeError):
            raise BadActionToken from None

    def _mac(self, kid: str, body: str) -> str:
        key = hmac.digest(self._secret, f"action tokens of {kid}".encode(), hashlib.sha256)
        return _pack(hmac.digest(key, body.encode(), hashlib.sha256))


def _key_id(moment: datetime) -> str:
    return f"{moment:%Y%m}"


def _pack(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
