"""Fingerprints of what all processes that answer requests must have in common: the secret key and the public address.

With another secret a process issues tokens and signatures that the others refuse, and with another public address it is
another issuer: callers get a 401 from one process and not from the next. So processes compare them
(`tenants.credential_feed`), by fingerprints, from which neither the secret nor the address can be computed.
"""

import hashlib
import hmac
from dataclasses import dataclass

_DIGITS = 16


@dataclass(frozen=True)
class Fingerprints:
    """None: not set, so there is nothing to compare."""

    secret: str | None = None
    url: str | None = None


@dataclass(frozen=True)
class Difference:
    """What a process has that differs, and who had it before."""

    variable: str
    host: str
    pid: int

    def __str__(self) -> str:
        return f"{self.variable} is not the one of process {self.pid} on {self.host}, which was started before"


def of(secret_key: str, public_url: str | None) -> Fingerprints:
    key = hashlib.sha256(b"fingerprint:" + secret_key.encode()).digest()

    def digest(text: str) -> str:
        return hmac.digest(key, text.encode(), "sha256").hex()[:_DIGITS]

    return Fingerprints(digest("secret key"), digest(f"public address {public_url}") if public_url else None)
