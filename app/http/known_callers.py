"""Callers that were authenticated before: who they are, until anything that says so changes.

An entry is found by the hash of its token, however the header around it is spelled. It is used only while the signing
keys are those it was verified with, its token and session have not expired, and nothing that it depends on was revoked
or changed (`tenants.liveness`); so it is worth as much as authenticating again, and costs a tenth. A tenant fills at
most half of the memory, and a caller with many tokens the place of a few: neither makes us forget the others.
"""

import contextlib
import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from app.http.auth import Actor, authenticate_bearer, verified_claims
from tenants import liveness, sessions, token_uses
from tenants.db import current_tx
from tenants.errors import Unauthenticated
from tenants.fair_cache import FairCache, Groups
from tenants.liveness import Basis
from tenants.signing import Signer

MAX_TOKENS = 20_000
MAX_TOKENS_OF_TENANT = MAX_TOKENS // 2
# A client may have many workers that each fetch a token of their own every hour. A user has a token per browser.
MAX_TOKENS_OF_CLIENT = 200
MAX_TOKENS_OF_USER = 20


@dataclass(frozen=True, slots=True)
class _Known:
    actor: Actor
    basis: Basis
    key_ids: frozenset[str]
    # Whose use is noted; empty for all other tokens.
    static_token_id: str


class KnownCallers:
    def __init__(self, signer: Signer) -> None:
        self._signer = signer
        self._known: FairCache[bytes, _Known] = FairCache(_groups_of)

    def authenticate(self, authorization: str) -> Actor:
        """The caller with this header; raises as `authenticate_bearer` does."""
        digest = _digest(authorization)
        return self._find(digest) or self._authenticate(authorization, digest)

    def find(self, authorization: str) -> Actor | None:
        """The same if it is known, without waiting."""
        return self._find(_digest(authorization))

    def last_known(self, authorization: str) -> Actor | None:
        """Who had this header when it was authenticated last, whatever has changed since: to count, not to admit."""
        known = self._known.get(_digest(authorization))
        return known.actor if known is not None else None

    def learn(self, authorizations: Sequence[str]) -> None:
        """Authenticate those who are not known yet, in one round trip for all users; whoever fails stays unknown."""
        verified: dict[str, dict[str, Any]] = {}
        for authorization in dict.fromkeys(authorizations):
            with contextlib.suppress(Unauthenticated):
                verified[authorization] = verified_claims(authorization, self._signer)
        users = [claims for claims in verified.values() if claims.get("kind") == "user"]
        sessions.fetch((str(claims["tenant"]), str(claims.get("sid"))) for claims in users)
        for authorization in verified:
            with contextlib.suppress(Exception):  # a thread meets the same error, and answers it
                self.authenticate(authorization)

    def _find(self, digest: bytes) -> Actor | None:
        known = self._known.get(digest)
        if (
            known is not None
            and known.actor.expires_at > time.time()
            and known.key_ids == self._signer.key_ids()
            and liveness.is_current(known.basis)
        ):
            if known.static_token_id:
                token_uses.note(known.actor.tenant_id, known.static_token_id)
            return known.actor
        return None

    def _authenticate(self, authorization: str, digest: bytes) -> Actor:
        key_ids = self._signer.key_ids()
        sequence, usable_until = liveness.moment()  # before anything is read
        actor = authenticate_bearer(authorization, self._signer)
        if current_tx() is None:  # an open transaction may see what it has not committed
            basis = Basis(actor.tenant_id, actor.names, sequence, usable_until)
            self._known.put(digest, _Known(actor, basis, key_ids, actor.static_token_id))
        return actor


def _groups_of(_digest: bytes, known: _Known) -> Groups:
    """The caller, the tenant, and all, and how many tokens of each are kept."""
    actor = known.actor
    return (
        ((actor.tenant_id, actor.caller), MAX_TOKENS_OF_CLIENT if actor.kind == "client" else MAX_TOKENS_OF_USER),
        ((actor.tenant_id,), MAX_TOKENS_OF_TENANT),
        ((), MAX_TOKENS),
    )


def _digest(authorization: str) -> bytes:
    scheme, _, token = authorization.partition(" ")
    return hashlib.sha256(f"{scheme.lower()} {token.strip()}".encode(errors="surrogatepass")).digest()
