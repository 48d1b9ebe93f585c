"""Password resets: a token with which a user can set a new password, once. Only its hash is stored.

A token is `rst_<tenant>_<random>_<mac>`. The release before made them without a MAC, and they are valid for an hour.
"""

from datetime import datetime, timedelta
from uuid import UUID

from sqlalchemy import ColumnElement, ForeignKeyConstraint, Uuid, delete, select, update
from sqlalchemy.orm import Mapped, mapped_column

from tenants import users
from tenants.db import Base, TenantOwned, Tx
from tenants.errors import Forbidden, Unauthenticated
from tenants.opaque_tokens import hash_token, signed, tenant_part
from tenants.signing import Signer
from tenants.users import Role, User

RESET_TTL = timedelta(hours=1)


class PasswordReset(TenantOwned, Base):
    __tablename__ = "password_resets"
    __table_args__ = (
        ForeignKeyConstraint(["tenant_id", "user_id"], ["users.tenant_id", "users.id"], ondelete="CASCADE"),
    )

    token_hash: Mapped[str] = mapped_column(primary_key=True)
    user_id: Mapped[UUID] = mapped_column(Uuid)
    expires_at: Mapped[datetime]
    used_at: Mapped[datetime | None]


class BadResetToken(Unauthenticated):
    code = "invalid_reset_token"
    title = "The reset token is not valid"


def create(tx: Tx, user: User, *, by_admin: bool, signer: Signer, now: datetime) -> tuple[str, datetime]:
    """Create a token with which this user can set a new password, once.

    The user is locked first: a concurrent promotion is either visible here, or finds the reset and deletes it.
    """
    users.lock(tx, user)
    if user.role == Role.ADMIN and not by_admin:
        raise Forbidden("Only an admin may reset an admin's password")
    token = signed(signer, "rst", tx.tenant)
    expires_at = now + RESET_TTL
    delete_for(tx, user.id)
    tx.add(PasswordReset(tenant_id=tx.tenant, token_hash=hash_token(token), user_id=user.id, expires_at=expires_at))
    tx.flush()
    return token, expires_at


def delete_for(tx: Tx, user_id: UUID) -> None:
    tx.execute(delete(PasswordReset).where(PasswordReset.user_id == user_id))


def tenant_of(token: str) -> str:
    return tenant_part(token, "rst_", BadResetToken)


def user_of(tx: Tx, token: str, *, now: datetime) -> UUID:
    """The user whose password this token can set, if it is valid."""
    user_id = tx.scalar(select(PasswordReset.user_id).where(*_is_valid(token, now)))
    if user_id is None:
        raise BadResetToken
    return user_id


def consume(tx: Tx, token: str, password_hash: str, *, now: datetime) -> UUID:
    """Set the new password; returns the user's id. `sessions.reset_password` also ends the user's sessions."""
    user_id = user_of(tx, token, now=now)
    # Lock the user before the reset, as in every other transaction.
    tx.execute(select(User.id).where(User.id == user_id).with_for_update(key_share=True))
    used = update(PasswordReset).where(*_is_valid(token, now)).values(used_at=now).returning(PasswordReset.user_id)
    if tx.scalar(used) is None:
        raise BadResetToken
    users.set_password(tx, user_id, password_hash, now=now)
    return user_id


def _is_valid(token: str, now: datetime) -> tuple[ColumnElement[bool], ...]:
    return (
        PasswordReset.token_hash == hash_token(token),
        PasswordReset.used_at.is_(None),
        PasswordReset.expires_at > now,
    )
