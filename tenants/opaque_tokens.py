"""What our opaque tokens have in common: `<prefix>_<tenant>_…`, random, and stored as a hash."""

import hashlib

from tenants.db import TENANT_ID
from tenants.errors import Unauthenticated


def tenant_part(token: str, prefix: str, wrong: type[Unauthenticated]) -> str:
    """The tenant in a token (ids contain no underscore), so that the token can be looked up inside that tenant."""
    parts = token.split("_", 2)
    if not token.startswith(prefix) or len(parts) < 3 or TENANT_ID.fullmatch(parts[1]) is None:
        raise wrong
    return parts[1]


def hash_token(token: str) -> str:
    """Tokens are random and long: a plain hash is enough."""
    return hashlib.sha256(token.encode()).hexdigest()
