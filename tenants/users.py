"""The users of a tenant: those who registered here, and a tenant app's own users, named by `external_id`."""

import re
from collections.abc import Collection, Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import ARRAY, BigInteger, CheckConstraint, Index, Text, Uuid, false, func, or_, select, text, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Mapped, mapped_column

from tenants import ceilings, passwords, profiles, registry, segments, suspensions, wallets
from tenants.ceilings import Ceiling
from tenants.db import Base, DeletedWithTenant, Tx
from tenants.errors import Conflict, Invalid, NotFound
from tenants.passwords import Party

USERNAME = re.compile(r"[A-Za-z0-9_]{3,50}")
EMAIL = re.compile(
    r"[^@\s\x00-\x1f\x7f]{1,64}@[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?(?:\.[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?)+"
)
EXTERNAL_ID = re.compile(r"[A-Za-z0-9._~:@-]{1,128}")
MAX_EMAIL_CHARS = 255
# What quests count and pay, as columns.
COUNTS = (
    *("experience_points", "reputation"),
    *("quests_created", "quests_completed", "attestations_given", "attestations_received"),
)


class Role(StrEnum):
    MEMBER = "member"
    ADMIN = "admin"


class User(DeletedWithTenant, Base):
    __tablename__ = "users"
    __table_args__ = (
        CheckConstraint("role IN ('member', 'admin')", name="role"),
        CheckConstraint("current_score >= 0", name="score"),
        *(CheckConstraint(f"{name} >= 0", name=name) for name in COUNTS),
        Index("uq_users_external_id", "tenant_id", "external_id", unique=True),
        Index("uq_users_username", "tenant_id", text("lower(username)"), unique=True),
        Index("uq_users_email", "tenant_id", text("lower(email)"), unique=True),
        Index("ix_users_newest", "tenant_id", "created_at", "id"),
        Index("ix_users_suspended_until", "suspended_until", postgresql_where=text("suspended_until IS NOT NULL")),
        Index("ix_users_segment", "tenant_id", "segment", postgresql_where=text("segment IS NOT NULL")),
        *segments.indexes("users"),
    )

    id: Mapped[UUID] = mapped_column(Uuid, primary_key=True, default=uuid4)
    external_id: Mapped[str | None]
    username: Mapped[str | None]
    email: Mapped[str | None]
    password_hash: Mapped[str | None]
    # Whether somebody else has seen the password: then its user may do nothing before they have changed it.
    must_change_password: Mapped[bool] = mapped_column(server_default=false())
    role: Mapped[str] = mapped_column(server_default=Role.MEMBER)
    # See `tenants.suspensions`: the first may be set although the second has passed.
    suspended_at: Mapped[datetime | None]
    suspended_until: Mapped[datetime | None]
    segment: Mapped[str | None]
    # The first included; but read `segments`, since the release before writes only `segment`.
    stored_segments: Mapped[list[str]] = mapped_column("segments", ARRAY(Text), server_default=text("'{}'::text[]"))
    display_name: Mapped[str | None]
    avatar_url: Mapped[str | None]
    # When what others see last changed: boards follow it.
    profile_changed_at: Mapped[datetime | None]
    bio: Mapped[str | None]
    wallet: Mapped[str | None]
    email_verified: Mapped[bool] = mapped_column(server_default=text("false"))
    # Of a member: whether they see private pages regardless of the setting `signup_sees`. False after a sign-up.
    sees_private: Mapped[bool] = mapped_column(server_default=text("true"))
    # Changed by the ledger, in the transaction of each entry.
    current_score: Mapped[int] = mapped_column(BigInteger, server_default="0")
    total_actions: Mapped[int] = mapped_column(BigInteger, server_default="0")
    score_reached_at: Mapped[datetime | None]
    experience_points: Mapped[int] = mapped_column(BigInteger, server_default="0")
    xp_reached_at: Mapped[datetime | None]
    reputation: Mapped[int] = mapped_column(BigInteger, server_default="0")
    reputation_reached_at: Mapped[datetime | None]
    # Changed by quests, in the transaction of each step.
    quests_created: Mapped[int] = mapped_column(BigInteger, server_default="0")
    quests_completed: Mapped[int] = mapped_column(BigInteger, server_default="0")
    attestations_given: Mapped[int] = mapped_column(BigInteger, server_default="0")
    attestations_received: Mapped[int] = mapped_column(BigInteger, server_default="0")
    erased_at: Mapped[datetime | None]
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]

    @property
    def segments(self) -> list[str]:
        return segments.of_user(self.segment, self.stored_segments)


class UserNotFound(NotFound):
    """Does not exist, belongs to another tenant, or is erased."""

    title = "There is no such user: use our id, ext:<your own id>, or me"


class NameTaken(Conflict):
    code = "name_taken"
    title = "This username or e-mail address is taken"


def register(
    tx: Tx,
    *,
    username: str,
    email: str | None,
    password_hash: str,
    now: datetime,
    role: Role = Role.MEMBER,
    sees_private: bool = True,
    must_change_password: bool = False,
) -> User:
    """Create a user who can log in."""
    _check(username=username, email=email)
    ceilings.require(tx, Ceiling.USERS, count)
    user = User(
        tenant_id=tx.tenant,
        id=uuid4(),
        username=username,
        email=email,
        password_hash=password_hash,
        must_change_password=must_change_password,
        role=role,
        email_verified=False,
        sees_private=sees_private,
        created_at=now,
        updated_at=now,
    )
    try:
        with tx.begin_nested():
            tx.add(user)
            tx.flush()
    except IntegrityError as error:
        field = "email" if "uq_users_email" in str(error.orig) else "username"
        raise NameTaken.field(field, "is taken", detail=f"This {field} is taken") from None
    return user


def ensure_external(tx: Tx, external_id: str, *, now: datetime) -> UUID:
    """The id of a tenant app's own user, created if it does not exist."""
    return find_or_create(tx, external_id, now=now)[0]


def find_or_create(tx: Tx, external_id: str, *, now: datetime) -> tuple[UUID, bool]:
    """The same, and whether it was created."""
    check_external_id(external_id)
    user_id = tx.scalar(select(User.id).where(User.external_id == external_id))
    if user_id is not None:
        return user_id, False
    ceilings.require(tx, Ceiling.USERS, count)
    created = tx.scalar(
        insert(User)
        .values(tenant_id=tx.tenant, id=uuid4(), external_id=external_id, created_at=now, updated_at=now)
        .on_conflict_do_nothing()
        .returning(User.id)
    )
    if created is not None:
        return created, True
    return tx.scalars(select(User.id).where(User.external_id == external_id)).one(), False


def count(tx: Tx, limit: int) -> int:
    """The number of users, including erased ones, counted up to `limit`."""
    counted = text("SELECT count(*) FROM (SELECT FROM users WHERE tenant_id = :tenant LIMIT :limit) u")
    return int(tx.scalar(counted, {"tenant": tx.tenant, "limit": limit}) or 0)


def get(tx: Tx, user_id: UUID) -> User:
    user = tx.scalar(select(User).where(User.id == user_id))
    if user is None or user.erased_at is not None:
        raise UserNotFound
    return user


def lock(tx: Tx, user: User) -> None:
    """Lock the user until the transaction ends, and read their current values."""
    tx.refresh(user, with_for_update=True)
    if user.erased_at is not None:
        raise UserNotFound


def find(tx: Tx, reference: str) -> User:
    """The user with this reference: our UUID, or `ext:<external_id>`."""
    if reference.startswith("ext:"):
        user = tx.scalar(select(User).where(User.external_id == reference.removeprefix("ext:")))
        if user is None:
            raise UserNotFound
        return user
    try:
        return get(tx, UUID(reference))
    except ValueError:
        raise UserNotFound from None


def find_all(tx: Tx, user_ids: Collection[UUID]) -> dict[UUID, User]:
    """These users by id, erased ones too."""
    return {user.id: user for user in tx.scalars(select(User).where(User.id.in_(user_ids)))}


def by_username(tx: Tx, username: str) -> User | None:
    return tx.scalar(select(User).where(func.lower(User.username) == username.lower()))


def search(tx: Tx, *, q: str | None, after: tuple[datetime, UUID] | None, limit: int) -> list[User]:
    """Newest first; `q` is the beginning of a username, e-mail address or external id."""
    wanted = select(User).where(User.erased_at.is_(None))
    wanted = wanted.order_by(User.created_at.desc(), User.id.desc()).limit(limit)
    if q:
        start = q.lower()
        wanted = wanted.where(
            or_(
                func.lower(User.username).startswith(start, autoescape=True),
                func.lower(User.email).startswith(start, autoescape=True),
                User.external_id.startswith(q, autoescape=True),
            )
        )
    if after is not None:
        wanted = wanted.where(text("(users.created_at, users.id) < (:at, :id)").bindparams(at=after[0], id=after[1]))
    return list(tx.scalars(wanted))


def change(tx: Tx, user: User, changes: Mapping[str, Any], *, now: datetime) -> User:
    """Set some of role, segments (or the first), suspended (with suspended_until), sees_private, names and profile.

    A new e-mail address is not verified. `suspended` without `suspended_until` is a suspension without an end.
    """
    values = dict(changes)
    if values.get("display_name") is not None:
        values["display_name"] = values["display_name"].strip()
    checked = ("username", "email", "display_name", "avatar_url", "wallet")
    _check(**{name: values[name] for name in checked if name in values})
    if values.get("wallet") is not None:
        values["wallet"] = wallets.checksummed(values["wallet"])
    if "email" in values and values["email"] != user.email:
        values.setdefault("email_verified", False)
    if values.get("external_id") is not None:
        check_external_id(values["external_id"])
    values |= segments.to_store(tx, values)
    if any(values[name] != getattr(user, name) for name in profiles.SHOWN & values.keys()):
        values["profile_changed_at"] = now
    if {"suspended", "suspended_until"} & values.keys():
        suspended, until = values.pop("suspended", None), values.pop("suspended_until", None)
        values |= suspensions.columns(tx, user, suspended, until, now=now)
    try:
        with tx.begin_nested():
            changed = update(User).where(User.id == user.id, User.erased_at.is_(None)).values(**values, updated_at=now)
            if tx.scalar(changed.returning(User.id)) is None:
                raise UserNotFound
    except IntegrityError as error:
        name = next(name for name in ("external_id", "username", "email") if f"uq_users_{name}" in str(error.orig))
        raise NameTaken.field(name, "is taken", detail=f"This {name} is taken") from None
    tx.refresh(user)
    return user


def words_about(tx: Tx, *, username: str | None, email: str | None) -> list[str | None]:
    """What others guess first about a user's password."""
    return [username, email, tx.tenant, registry.get(tx, tx.tenant).name]


def set_password(tx: Tx, user_id: UUID, password_hash: str, *, now: datetime) -> None:
    """Set another password, which its user alone knows."""
    values = {"password_hash": password_hash, "must_change_password": False, "updated_at": now}
    tx.execute(update(User).where(User.id == user_id).values(**values))


def rehash_if_outdated(user: User, password: str, *, party: Party) -> str | None:
    """Hash the password again if it was hashed with older parameters. Slow: call it outside of transactions."""
    if user.password_hash is None or not passwords.needs_rehash(user.password_hash):
        return None
    return passwords.hash_password(password, party=party)


def set_new_hash(tx: Tx, user_id: UUID, password_hash: str, *, now: datetime) -> None:
    """Store another hash of the same password."""
    tx.execute(update(User).where(User.id == user_id).values(password_hash=password_hash, updated_at=now))


def lock_unchanged(tx: Tx, user: User) -> User | None:
    """The user as they are now, locked for the transaction, if they have the same password as before."""
    current = tx.scalar(select(User).where(User.id == user.id).with_for_update())
    return current if current is not None and current.password_hash == user.password_hash else None


def check_external_id(external_id: str) -> None:
    if EXTERNAL_ID.fullmatch(external_id) is None:
        raise Invalid.field("user", "1 to 128 of A-Z, a-z, 0-9 and . _ ~ : @ -")


def _check(
    *,
    username: str | None = None,
    email: str | None = None,
    display_name: str | None = None,
    avatar_url: str | None = None,
    wallet: str | None = None,
) -> None:
    errors: dict[str, str] = {}
    if username is not None and USERNAME.fullmatch(username) is None:
        errors["username"] = "3 to 50 of A-Z, a-z, 0-9 and _"
    if email is not None and (len(email) > MAX_EMAIL_CHARS or EMAIL.fullmatch(email) is None):
        errors["email"] = f"a valid address of at most {MAX_EMAIL_CHARS} characters"
    if display_name is not None and not profiles.is_display_name(display_name):
        errors["display_name"] = profiles.DISPLAY_NAME
    if avatar_url is not None and not profiles.is_picture_url(avatar_url):
        errors["avatar_url"] = profiles.PICTURE_URL
    if wallet is not None and wallets.checksummed(wallet) is None:
        errors["wallet"] = "0x and 40 hex digits, in one case or with the right checksum (EIP-55)"
    if errors:
        raise Invalid.fields(errors)
