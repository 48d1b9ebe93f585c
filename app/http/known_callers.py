"""Callers that were authenticated before: who they are, until anything that says so changes.

An entry is found by the hash of its `Authorization` header. It is used only while the signing keys are those it was
verified with, its token and session have not expired, and nothing that it depends on was revoked or changed
(`tenants.liveness`); so it is worth as much as authenticating again, and costs a tenth.
"""

import contextlib
import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from app.http.auth import Actor, authenticate_bearer, verified_claims
from tenants import liveness, sessions
from tenants.db import current_tx
from tenants.errors import Unauthenticated
from tenants.liveness import Basis
from tenants.signing import Signer

MAX_CALLERS = 10_000


@dataclass(frozen=True, slots=True)
class _Known:
    actor: Actor
    basis: Basis
    key_ids: frozenset[str]


class KnownCallers:
    def __init__(self, signer: Signer) -> None:
        self._signer = signer
        self._lock = threading.Lock()
        self._known: OrderedDict[bytes, _Known] = OrderedDict()

    def authenticate(self, authorization: str) -> Actor:
        """The caller with this header; raises as `authenticate_bearer` does."""
        digest = _digest(authorization)
        return self._find(digest) or self._authenticate(authorization, digest)

    def find(self, authorization: str) -> Actor | None:
        """The same if it is known, without waiting."""
        return self._find(_digest(authorization))

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
            return known.actor
        return None

    def _authenticate(self, authorization: str, digest: bytes) -> Actor:
        key_ids = self._signer.key_ids()
        sequence, usable_until = liveness.moment()  # before anything is read
        actor = authenticate_bearer(authorization, self._signer)
        if current_tx() is None:  # an open transaction may see what it has not committed
            basis = Basis(actor.tenant_id, actor.names, sequence, usable_until)
            with self._lock:
                self._known[digest] = _Known(actor, basis, key_ids)
                self._known.move_to_end(digest)
                if len(self._known) > MAX_CALLERS:
                    self._known.popitem(last=False)
        return actor


def _digest(authorization: str) -> bytes:
    return hashlib.sha256(authorization.encode(errors="surrogatepass")).digest()
