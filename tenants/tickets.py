"""Tickets: how a browser comes in to a socket, where it can send no header and no token may stand in an address.

One use, half a minute, and kept in PostgreSQL: spending one is one DELETE, so it counts once whatever becomes of Redis.
A socket outlives its ticket by far, so it remembers who holds it and asks again what they may see.
"""

import hashlib
import secrets
import time
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from sqlalchemy import ForeignKey, Index, delete
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from tenants import credentials, sessions
from tenants.db import TENANT_ID, Base, TenantOwned, Tx, tenant_tx
from tenants.errors import Unauthenticated
from tenants.liveness import TENANT

LIVES = timedelta(seconds=30)


class LiveTicket(TenantOwned, Base):
    __tablename__ = "live_tickets"
    __table_args__ = (Index("ix_live_tickets_expires_at", "expires_at"),)

    tenant_id: Mapped[str] = mapped_column(
        ForeignKey("tenants.id", ondelete="CASCADE"), primary_key=True, sort_order=-1
    )
    ticket_hash: Mapped[str] = mapped_column(primary_key=True)
    holder: Mapped[dict[str, Any]] = mapped_column(JSONB)
    expires_at: Mapped[datetime]


class BadTicket(Unauthenticated):
    code = "invalid_ticket"
    title = "The ticket is not valid, or was used, or is too old"


@dataclass(frozen=True)
class Holder:
    """Whose a ticket is, by the credential with which they asked for it."""

    tenant_id: str
    kind: Literal["user", "client", "key"]
    id: str
    # A user's session, or the id of a client's token, and when (in seconds of UNIX) that runs out.
    proof: str = ""
    until: int | None = None

    def names(self) -> set[str]:
        """The credentials that must not be revoked, by their names in `liveness`."""
        match self.kind:
            case "user":
                return {f"session:{self.proof}", TENANT}
            case "client":
                return {f"client:{self.id}", f"token:{self.proof}", TENANT}
            case "key":
                return {f"key:{self.id}", TENANT}

    @property
    def subject(self) -> str:
        """The name under which `liveness` publishes that their rights have changed."""
        return f"{self.kind}:{self.id}"

    def public_only(self) -> bool | None:
        """Whether they see public pages only, as of now. None: the credential is not valid any more."""
        if self.until is not None and time.time() >= self.until:
            return None
        match self.kind:
            case "user":
                rights = sessions.rights_of(self.tenant_id, self.proof)
                return rights.public_only if rights is not None else None
            case "client":
                return False if credentials.client_token_counts(self.tenant_id, self.id, self.proof) else None
            case "key":
                return True if credentials.find_key(self.id) is not None else None


def issue(tx: Tx, holder: Holder, *, now: datetime) -> tuple[str, datetime]:
    """A new ticket, and until when it can be used."""
    ticket, expires_at = f"tkt_{tx.tenant}_{secrets.token_urlsafe(32)}", now + LIVES
    tx.add(
        LiveTicket(tenant_id=tx.tenant, ticket_hash=_hash(ticket), holder=asdict(holder), expires_at=expires_at),
    )
    tx.flush()
    return ticket, expires_at


def spend(ticket: str, *, now: datetime) -> Holder:
    """Whose it is; from now on it is nobody's. Whether its holder's credential is still valid, the holder says."""
    parts = ticket.split("_", 2)
    if len(parts) < 3 or parts[0] != "tkt" or TENANT_ID.fullmatch(parts[1]) is None:
        raise BadTicket
    with tenant_tx(parts[1]) as tx:
        spent = tx.execute(
            delete(LiveTicket)
            .where(LiveTicket.ticket_hash == _hash(ticket))
            .returning(LiveTicket.holder, LiveTicket.expires_at)
        ).one_or_none()
    if spent is None or spent.expires_at <= now:
        raise BadTicket
    return Holder(**spent.holder)


def _hash(ticket: str) -> str:
    return hashlib.sha256(ticket.encode()).hexdigest()
