"""Tickets: how a browser authenticates a socket, where it can send no header, and an address must not contain a token.

A ticket is `tkt_<tenant>_<random>_<mac>`, valid once, for half a minute, and stored in PostgreSQL: using it is one
DELETE, so it is used once even without Redis. A socket outlives its ticket by far, so it keeps the ticket's holder and
checks their rights again.
"""

import time
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from sqlalchemy import Index, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from tenants import credentials, sessions, static_tokens, unproven
from tenants.db import Base, DeletedWithTenant, Tx, tenant_tx
from tenants.errors import Unauthenticated
from tenants.liveness import TENANT
from tenants.opaque_tokens import hash_token, is_ours, signed, tenant_part
from tenants.signing import Signer
from tenants.static_tokens import STATIC

TICKET_TTL = timedelta(seconds=30)


class LiveTicket(DeletedWithTenant, Base):
    __tablename__ = "live_tickets"
    __table_args__ = (Index("ix_live_tickets_expires_at", "expires_at"),)

    ticket_hash: Mapped[str] = mapped_column(primary_key=True)
    holder: Mapped[dict[str, Any]] = mapped_column(JSONB)
    expires_at: Mapped[datetime]


class BadTicket(Unauthenticated):
    code = "invalid_ticket"
    title = "The ticket is not valid, or was used, or is too old"


@dataclass(frozen=True)
class Holder:
    """The owner of a ticket, identified by the credential that requested it."""

    tenant_id: str
    kind: Literal["user", "client", "key"]
    id: str
    # A user's session, or the id of a client's or a static token, and when (UNIX time in seconds) that expires.
    proof: str = ""
    until: int | None = None

    def names(self) -> set[str]:
        """The credentials that must not be revoked, by their names in `liveness`."""
        match self.kind:
            case "user":
                return {f"{'token' if self._static_token else 'session'}:{self.proof}", TENANT}
            case "client":
                return {f"client:{self.id}", f"token:{self.proof}", TENANT}
            case "key":
                return {f"key:{self.id}", TENANT}

    @property
    def _static_token(self) -> str:
        """The id of the static token that requested the ticket; empty if it was another credential."""
        is_static = self.kind != "key" and self.proof.startswith(STATIC)
        return self.proof.removeprefix(STATIC) if is_static else ""

    @property
    def subject(self) -> str:
        """The name under which `liveness` announces that the holder's rights have changed."""
        return f"{self.kind}:{self.id}"

    def sees_public_only(self) -> bool | None:
        """Whether the holder sees public pages only, as of now. None: the credential is no longer valid."""
        if self.until is not None and time.time() >= self.until:
            return None
        if self._static_token:
            allowed = static_tokens.rights_of(self.tenant_id, self._static_token)
            return allowed.public_only if allowed is not None else None
        match self.kind:
            case "user":
                rights = sessions.rights_of(self.tenant_id, self.proof)
                return rights.public_only if rights is not None else None
            case "client":
                return False if credentials.client_token_is_valid(self.tenant_id, self.id, self.proof) else None
            case "key":
                return True if credentials.find_key(self.id) is not None else None


def issue(tx: Tx, holder: Holder, *, signer: Signer, now: datetime) -> tuple[str, datetime]:
    """Create a ticket; returns it and when it expires."""
    ticket, expires_at = signed(signer, "tkt", tx.tenant), now + TICKET_TTL
    tx.add(
        LiveTicket(tenant_id=tx.tenant, ticket_hash=hash_token(ticket), holder=asdict(holder), expires_at=expires_at),
    )
    tx.flush()
    return ticket, expires_at


def consume(ticket: str, *, signer: Signer, network: str, now: datetime) -> Holder:
    """Use up a ticket; returns its holder, whose credential the caller has to check (`sees_public_only`).

    One that does not prove that we issued it may be of a process of before this release, and is looked up first.
    """
    tenant_id, hashed = tenant_part(ticket, "tkt_", BadTicket), hash_token(ticket)
    if not is_ours(ticket, signer):
        values = (tenant_id, hashed)
        if not unproven.exists(tenant_id, f"ticket:{hashed}", _STORED, values, network=network):
            raise BadTicket
    with tenant_tx(tenant_id) as tx:
        used = tx.run(_CONSUME, {"tenant": tx.tenant, "hash": hashed})
    if not used or used[0].expires_at <= now:
        raise BadTicket
    return Holder(**used[0].holder)


_STORED = "SELECT expires_at FROM live_tickets WHERE tenant_id = %s AND ticket_hash = %s"
_CONSUME = text("""
    DELETE FROM live_tickets WHERE tenant_id = :tenant AND ticket_hash = :hash RETURNING holder, expires_at
""")
