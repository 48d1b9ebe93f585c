"""What our opaque tokens have in common: `<prefix>_<tenant>_…_<random>_<mac>`, and stored as a hash.

The MAC proves that we issued the token, before anything is looked up.
"""

import hashlib
import hmac
import secrets

from tenants.db import TENANT_ID
from tenants.errors import Unauthenticated
from tenants.signing import Signer


def tenant_part(token: str, prefix: str, wrong: type[Unauthenticated]) -> str:
    """The tenant in a token (ids contain no underscore), so that the token can be looked up inside that tenant."""
    parts = token.split("_", 2)
    if not token.startswith(prefix) or len(parts) < 3 or TENANT_ID.fullmatch(parts[1]) is None:
        raise wrong
    return parts[1]


def hash_token(token: str) -> str:
    """Tokens are random and long: a plain hash is enough."""
    return hashlib.sha256(token.encode()).hexdigest()


def signed(signer: Signer, *parts: str, random_bytes: int = 24, separator: str = "_") -> str:
    """A new token of these parts, with randomness and a MAC. `separator` is what stands before the MAC."""
    body = "_".join([*parts, secrets.token_hex(random_bytes)])
    return f"{body}{separator}{signer.mac(body)}"


def is_ours(token: str, signer: Signer, *, separator: str = "_") -> bool:
    """Whether its MAC is right, so that we issued it, with the present PLAUDIT_SECRET_KEY."""
    body, _, mac = token.rpartition(separator)
    return token.isascii() and hmac.compare_digest(mac, signer.mac(body))
