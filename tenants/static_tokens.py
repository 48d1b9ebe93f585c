"""Static tokens, for tools that can only send a fixed header: `Authorization: Bearer plt_<tenant>_<id>_<random>_<mac>`.

A token belongs to its tenant, and then may do what its scopes allow, as a client; or to a user, and then acts as that
user, with the role that they have at the moment, as far as its scopes allow that too. It is shown once and stored as a
hash. One that we did not issue is refused without a look-up, by its MAC. Whether the others are valid is kept in memory
(`liveness`), so a revoked one is refused on the next call.

Whatever ends all sessions of a user revokes their tokens: a new password, a suspension, an admin. An erasure deletes
them.
"""

import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import ForeignKeyConstraint, Index, Uuid, delete, func, select, text, update
from sqlalchemy.dialects.postgresql import ARRAY, TEXT
from sqlalchemy.orm import Mapped, mapped_column

from tenants import credentials, liveness, users
from tenants import settings as tenant_settings
from tenants.credentials import Scope
from tenants.db import TENANT_ID, Base, DeletedWithTenant, Tx
from tenants.errors import Conflict, Invalid, NotFound
from tenants.group_tx import read_one
from tenants.opaque_tokens import hash_token, is_ours, signed
from tenants.settings import VisiblePages
from tenants.signing import Signer
from tenants.users import Role, User

PREFIX = "plt_"
ID = re.compile(r"[0-9a-f]{32}")
# What the id of a token has before it where ids of clients and of access tokens stand too.
STATIC = "static:"
MAX_TOKENS_OF_TENANT = 100
MAX_TOKENS_OF_USER = 20
MAX_CHARS = 200


class StaticToken(DeletedWithTenant, Base):
    __tablename__ = "static_tokens"
    __table_args__ = (
        ForeignKeyConstraint(["tenant_id", "user_id"], ["users.tenant_id", "users.id"], ondelete="CASCADE"),
        Index("ix_static_tokens_user", "tenant_id", "user_id"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    token_hash: Mapped[str]
    name: Mapped[str]
    scopes: Mapped[list[str]] = mapped_column(ARRAY(TEXT))
    # None: the tenant's.
    user_id: Mapped[UUID | None] = mapped_column(Uuid)
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime | None]
    last_used_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]


class TooManyTokens(Conflict):
    code = "ceiling_reached"
    title = "There are as many static tokens as there may be: revoke one first"

    def __init__(self, maximum: int) -> None:
        super().__init__(f"At most {maximum} static tokens may be valid: revoke one first")


@dataclass(frozen=True)
class NewToken:
    row: StaticToken
    token: str


@dataclass(frozen=True, slots=True)
class Shown:
    """What a token of ours says. It may have been revoked."""

    tenant_id: str
    token_id: str
    hash: str


@dataclass(frozen=True, slots=True)
class Rights:
    """What a valid token may do. Of a user's, the user and their role."""

    scopes: frozenset[str]
    user_id: UUID | None
    role: Role | None
    public_only: bool
    # In seconds since the epoch; None: never.
    expires_at: float | None


@dataclass(frozen=True, slots=True)
class _Valid:
    """What is kept of a token. A restricted user sees what the tenant's settings say, which may change."""

    hash: str
    rights: Rights
    is_restricted: bool


def create(
    tx: Tx,
    *,
    signer: Signer,
    name: str,
    scopes: Iterable[str],
    user: User | None = None,
    expires_at: datetime | None = None,
    now: datetime,
) -> NewToken:
    """Create a token of this user, or of the tenant. It cannot be shown again."""
    credentials.check_name(name)
    wanted = credentials.check_scopes(scopes)
    if expires_at is not None and expires_at <= now:
        raise Invalid.field("expires_at", "in the future; null: never")
    if user is None:
        tx.execute(_LOCK_TENANTS, {"tenant": tx.tenant})
    else:
        users.lock(tx, user)
        if user.role != Role.ADMIN and Scope.ADMIN in wanted:
            raise Invalid.field("scopes", "only an admin's token may have the scope admin")
    _require_room(tx, user.id if user is not None else None, now=now)
    token_id = uuid4().hex
    token = signed(signer, "plt", tx.tenant, token_id)
    row = StaticToken(
        tenant_id=tx.tenant,
        id=token_id,
        token_hash=hash_token(token),
        name=name,
        scopes=wanted,
        user_id=user.id if user is not None else None,
        created_at=now,
        expires_at=expires_at,
    )
    tx.add(row)
    tx.flush()
    return NewToken(row, token)


def list_tokens(
    tx: Tx, *, user_id: UUID | None = None, after: str | None = None, limit: int = 1000
) -> list[StaticToken]:
    """Tokens that are not revoked, by id: of this user, if given, or all. Expired ones are among them for a month."""
    wanted = select(StaticToken).where(StaticToken.revoked_at.is_(None), StaticToken.id > (after or ""))
    if user_id is not None:
        wanted = wanted.where(StaticToken.user_id == user_id)
    return list(tx.scalars(wanted.order_by(StaticToken.id).limit(limit)))


def revoke(tx: Tx, token_id: str, *, user_id: UUID | None = None, now: datetime) -> None:
    """Revoke a token (of this user, if given): from the commit on it is not valid."""
    revoked = (
        update(StaticToken)
        .where(StaticToken.id == token_id, StaticToken.revoked_at.is_(None))
        .values(revoked_at=now)
        .returning(StaticToken.id)
    )
    if user_id is not None:
        revoked = revoked.where(StaticToken.user_id == user_id)
    if tx.scalar(revoked) is None:
        raise NotFound
    liveness.record(tx, [_name(token_id)])


def revoke_all_of(tx: Tx, user_id: UUID, *, now: datetime) -> None:
    """Revoke every token of a user. The caller records the change of the user (`liveness`)."""
    of_user = update(StaticToken).where(StaticToken.user_id == user_id, StaticToken.revoked_at.is_(None))
    tx.execute(of_user.values(revoked_at=now))


def delete_all_of(tx: Tx, user_id: UUID) -> None:
    """Delete every token of a user. The caller records the change of the user (`liveness`)."""
    tx.execute(delete(StaticToken).where(StaticToken.user_id == user_id))


def parse(token: str, signer: Signer) -> Shown | None:
    """What the token says, if we issued it, with the present PLAUDIT_SECRET_KEY. It may have been revoked."""
    parts = token.split("_", 5) if len(token) <= MAX_CHARS else []
    if len(parts) != 5 or TENANT_ID.fullmatch(parts[1]) is None or ID.fullmatch(parts[2]) is None:
        return None
    return Shown(parts[1], parts[2], hash_token(token)) if is_ours(token, signer) else None


def rights_of(tenant_id: str, token_id: str, *, hashed: str | None = None) -> Rights | None:
    """The rights of a token, if it is valid; and if it has this hash, where one is given."""

    def read() -> tuple[_Valid | None, Sequence[str]]:
        return _answer_of(token_id, read_one(tenant_id, _VALID, (tenant_id, token_id)))

    found = liveness.look_up(tenant_id, _name(token_id), read)
    if found is None or (hashed is not None and found.hash != hashed):
        return None
    rights = found.rights
    if rights.expires_at is not None and rights.expires_at <= time.time():
        return None
    if found.is_restricted and tenant_settings.recent(tenant_id).signup_sees is not VisiblePages.ALL:
        return replace(rights, public_only=True)
    return rights


def names_of(token_id: str, user_id: UUID) -> tuple[str, str]:
    """The names under which changes of a user's token are recorded, but for the tenant's settings."""
    return _name(token_id), f"user:{user_id}"


def _name(token_id: str) -> str:
    return f"token:{STATIC}{token_id}"


def _require_room(tx: Tx, user_id: UUID | None, *, now: datetime) -> None:
    """Raise if the user, or the tenant, has its maximum of valid tokens. Whoever it is for is locked."""
    is_valid = (StaticToken.expires_at.is_(None)) | (StaticToken.expires_at > now)
    number = tx.scalar(
        select(func.count())
        .select_from(StaticToken)
        .where(
            StaticToken.tenant_id == tx.tenant,
            StaticToken.user_id.is_not_distinct_from(user_id),
            StaticToken.revoked_at.is_(None),
            is_valid,
        )
    )
    maximum = MAX_TOKENS_OF_TENANT if user_id is None else MAX_TOKENS_OF_USER
    if (number or 0) >= maximum:
        raise TooManyTokens(maximum)


def _answer_of(token_id: str, row: Any) -> tuple[_Valid | None, Sequence[str]]:
    """What is kept of a token, by its row of `_VALID`, and the names whose changes end that."""
    if row is None:
        return None, [_name(token_id)]
    rights = Rights(
        scopes=frozenset(row.scopes),
        user_id=row.user_id,
        role=Role(row.role) if row.role is not None else None,
        public_only=False,
        expires_at=row.expires_at.timestamp() if row.expires_at is not None else None,
    )
    is_restricted = row.user_id is not None and row.role != Role.ADMIN and not row.sees_private
    names = [_name(token_id)] if row.user_id is None else names_of(token_id, row.user_id)
    return _Valid(row.token_hash, rights, is_restricted), names


_LOCK_TENANTS = text("SELECT pg_advisory_xact_lock(hashtextextended('static tokens:' || :tenant, 0))")
# A suspension revokes all tokens; what was created after its end is valid, also before a job has removed it from the
# user (as with sessions).
_VALID = """
    SELECT s.token_hash, s.scopes, s.expires_at, s.user_id, u.role, u.sees_private FROM static_tokens s
    JOIN tenants t ON t.id = s.tenant_id
    LEFT JOIN users u ON u.tenant_id = s.tenant_id AND u.id = s.user_id
    WHERE s.tenant_id = %s AND s.id = %s AND s.revoked_at IS NULL AND (s.expires_at IS NULL OR s.expires_at > now())
      AND t.deleted_at IS NULL
      AND (s.user_id IS NULL
           OR u.erased_at IS NULL AND (u.suspended_at IS NULL OR s.created_at >= u.suspended_until))
"""
