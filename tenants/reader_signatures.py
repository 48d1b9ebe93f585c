"""Signatures by which a site names its reader to the browser's beacon.

The site's server signs with the secret of its publishable key: `<unix s>.<hex HMAC-SHA256(secret, tenant LF user LF
unix s)>`, valid for a day. The secret is derived from ours, the key and the key's salt, so it is stored nowhere; a new
salt makes another one.
"""

import base64
import hashlib
import hmac
import re
from datetime import datetime

from tenants.credentials import ValidKey
from tenants.errors import Forbidden

VALID_S = 24 * 3600
# For clocks that differ.
MAX_AHEAD_S = 300
_SIGNATURE = re.compile(r"([0-9]{1,12})\.([0-9a-f]{64})")


class BadSignature(Forbidden):
    code = "invalid_signature"
    title = "The reader's signature is not valid, or older than a day"


class ReaderSignatures:
    def __init__(self, secret_key: str) -> None:
        self._key = hashlib.sha256(b"reader:" + secret_key.encode()).digest()

    def secret_of(self, key_id: str, salt: str) -> str:
        """What the site's server signs with. Whoever has it can like pages as any reader of the tenant."""
        derived = hmac.digest(self._key, f"{key_id}\n{salt}".encode(), "sha256")
        return f"rs_{base64.urlsafe_b64encode(derived).decode().rstrip('=')}"

    def is_valid(self, key: ValidKey, user: str, signature: str, *, now: datetime) -> bool:
        match = _SIGNATURE.fullmatch(signature)
        if match is None or not -MAX_AHEAD_S <= now.timestamp() - int(match[1]) < VALID_S:
            return False
        secret = self.secret_of(key.key_id, key.reader_salt)
        return hmac.compare_digest(sign(secret, key.tenant_id, user, at=int(match[1])), signature)


def sign(secret: str, tenant_id: str, user: str, *, at: int) -> str:
    """The signature, as a site's server computes it."""
    signed = "\n".join((tenant_id, user, str(at)))
    return f"{at}.{hmac.digest(secret.encode(), signed.encode(), 'sha256').hex()}"
