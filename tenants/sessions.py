"""Logins: a session row for each, short access tokens, and refresh tokens that are used once.

A refresh token is `rt_<tenant>_<session>_<random>_<mac>`; only its hash is stored. If one that was already
replaced is used, somebody has a copy, so the session ends. Whether a session is valid is kept in memory (`liveness`).

A browser that signs in to the dashboard has a cookie instead, `ds_<tenant>_<session>_<user>_<random>_<mac>`: it does
not change while its session is valid.
"""

import contextlib
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import ForeignKeyConstraint, Index, Uuid, cast, delete, func, select, update
from sqlalchemy.dialects.postgresql import INET
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Mapped, mapped_column

from tenants import liveness, logs, resets, session_use, static_tokens, users
from tenants import settings as tenant_settings
from tenants.db import TENANT_ID, Base, TenantOwned, Tx, current_tx, tenant_tx, utcnow
from tenants.errors import NotFound, Unauthenticated
from tenants.group_tx import read_one, read_together
from tenants.opaque_tokens import hash_token, is_ours, signed, tenant_part
from tenants.security_events import SecurityEvent
from tenants.settings import VisiblePages
from tenants.shares import TenantBusy
from tenants.signing import Signer
from tenants.users import Role, User

ACCESS_TOKEN_TTL_S = 900
SESSION_TTL = timedelta(days=30)
MAX_AGENT_CHARS = 512


class Session(TenantOwned, Base):
    __tablename__ = "sessions"
    __table_args__ = (
        ForeignKeyConstraint(["tenant_id", "user_id"], ["users.tenant_id", "users.id"], ondelete="CASCADE"),
        Index("ix_sessions_user", "tenant_id", "user_id"),
        Index("ix_sessions_expires_at", "expires_at"),
    )

    id: Mapped[UUID] = mapped_column(Uuid, primary_key=True, default=uuid4)
    user_id: Mapped[UUID] = mapped_column(Uuid)
    refresh_hash: Mapped[str]
    ip: Mapped[str | None] = mapped_column(INET)
    user_agent: Mapped[str | None]
    created_at: Mapped[datetime]
    last_used_at: Mapped[datetime]
    expires_at: Mapped[datetime]
    revoked_at: Mapped[datetime | None]


class BadLogin(Unauthenticated):
    code = "invalid_credentials"
    title = "The tenant, username or password is not right"


class BadRefreshToken(Unauthenticated):
    code = "invalid_refresh_token"
    title = "The refresh token is not valid"


@dataclass(frozen=True)
class Tokens:
    access_token: str
    refresh_token: str
    expires_in: int
    session_id: UUID


@dataclass(frozen=True)
class Cookie:
    value: str
    session_id: UUID


@dataclass(frozen=True)
class BrowserSession:
    """The tenant, user and session in a cookie. Its session may have ended."""

    tenant_id: str
    user_id: UUID
    session_id: UUID


@dataclass(frozen=True)
class Rights:
    """What a session's user may do, by their role, and whether they see public pages only."""

    role: Role
    public_only: bool
    # Then they may do nothing else.
    must_change_password: bool = False
    # When the session ends if it is not used, in seconds since the epoch.
    expires_at: float = field(default=0.0, compare=False)


def start(tx: Tx, user: User, *, signer: Signer, ip: str | None, agent: str | None, now: datetime) -> Tokens:
    """Start a session for a user who has authenticated."""
    session_id = uuid4()
    refresh = signed(signer, "rt", tx.tenant, session_id.hex)
    _store(tx, session_id, user, refresh, ip=ip, agent=agent, now=now)
    return _tokens(tx.tenant, user.id, session_id, refresh, signer, now)


def start_in_browser(tx: Tx, user: User, *, signer: Signer, ip: str | None, agent: str | None, now: datetime) -> Cookie:
    """The same, for the dashboard."""
    session_id = uuid4()
    cookie = signed(signer, "ds", tx.tenant, session_id.hex, user.id.hex)
    _store(tx, session_id, user, cookie, ip=ip, agent=agent, now=now)
    return Cookie(cookie, session_id)


def parse_cookie(cookie: str, signer: Signer) -> BrowserSession | None:
    """The session in a cookie, if we issued it. `rights_of` checks whether the session is valid."""
    parts = cookie.split("_")
    if len(parts) != 6 or parts[0] != "ds" or TENANT_ID.fullmatch(parts[1]) is None or not is_ours(cookie, signer):
        return None
    return BrowserSession(parts[1], user_id=UUID(hex=parts[3]), session_id=UUID(hex=parts[2]))


def _store(
    tx: Tx, session_id: UUID, user: User, token: str, *, ip: str | None, agent: str | None, now: datetime
) -> None:
    tx.add(
        Session(
            tenant_id=tx.tenant,
            id=session_id,
            user_id=user.id,
            refresh_hash=hash_token(token),
            ip=ip,
            user_agent=_stored_agent(agent),
            created_at=now,
            last_used_at=now,
            expires_at=now + SESSION_TTL,
        )
    )
    tx.flush()
    ended = session_use.end_oldest(tx, user.id, now=now)
    liveness.record(tx, [_session_name(str(ended_id)) for ended_id in ended])


def is_known_device(tx: Tx, username: str, *, network: str, agent: str | None, now: datetime) -> bool:
    """Whether this user started a session from this network and agent within the lifetime of a session."""
    known = (
        select(Session.id)
        .join(User, (User.tenant_id == Session.tenant_id) & (User.id == Session.user_id))
        .where(
            func.lower(User.username) == username.lower(),
            Session.created_at > now - SESSION_TTL,
            Session.user_agent.is_not_distinct_from(_stored_agent(agent)),
            Session.ip.op("<<=")(cast(network or None, INET)),
        )
    )
    return tx.scalar(known.limit(1)) is not None


def _stored_agent(agent: str | None) -> str | None:
    return (agent or "")[:MAX_AGENT_CHARS] or None


def refresh(token: str, *, signer: Signer, now: datetime) -> Tokens:
    """Exchange a refresh token for new tokens; one that was used before ends its session."""
    tenant_id, session_id = _parse_refresh(token, signer)
    rights = rights_of(tenant_id, str(session_id))
    if rights is None:
        raise BadRefreshToken
    signer.load()
    with tenant_tx(tenant_id) as tx:
        new = signed(signer, "rt", tenant_id, session_id.hex)
        user_id = tx.scalar(
            update(Session)
            .where(
                Session.id == session_id,
                Session.refresh_hash == hash_token(token),
                Session.revoked_at.is_(None),
                Session.expires_at > now,
            )
            .values(refresh_hash=hash_token(new), last_used_at=now)
            .returning(Session.user_id)
        )
        if user_id is not None:
            if rights.expires_at < now.timestamp() + 2 * liveness.MAX_AGE_S:
                # Processes may keep this end of an unused session for so long, and would refuse the new tokens.
                liveness.record(tx, [_session_name(str(session_id))])
            return _tokens(tenant_id, user_id, session_id, new, signer, now)
        # A token of ours that is not the newest: somebody has a copy. (An expired one is still the newest.)
        is_newest = select(Session.id).where(Session.id == session_id, Session.refresh_hash == hash_token(token))
        reused = tx.scalar(is_newest) is None and revoke(tx, session_id, now=now)
    if reused:
        logs.bind(tenant_id=tenant_id)
        logs.audit(SecurityEvent.SESSION_ENDED, session=str(session_id), why="a refresh token was used twice")
        raise BadRefreshToken("This refresh token was used before, so its session has ended: log in again")
    raise BadRefreshToken


def rights_of(tenant_id: str, session_id: str, *, touches: bool = False) -> Rights | None:
    """The rights of the session's user, if the session is valid. The one place that decides who sees private pages.

    Opens a transaction if the answer is not in memory. With `touches` that also notes that the session is used: what is
    in memory is read again often enough for that.
    """

    def read() -> tuple[Rights | None, Sequence[str]]:
        try:
            wanted = [UUID(session_id)]
        except ValueError:
            wanted = []
        row = read_one(tenant_id, _VALID_SESSIONS, (tenant_id, wanted)) if wanted else None
        if row is not None and touches and _touch(tenant_id, row):
            row = row._replace(last_used_at=utcnow())
        return _answer_of(session_id, row)

    found = liveness.look_up(tenant_id, _session_name(session_id), read)
    return found if found is not None and found.expires_at > time.time() else None


def _touch(tenant_id: str, row: Any) -> bool:
    """Note that a valid session is used, if that is due; False if it is not, or cannot be written at the moment."""
    now = utcnow()
    is_valid = _rights_in(row).expires_at > now.timestamp()
    if row.last_used_at > now - session_use.TOUCH_EVERY or not is_valid or current_tx() is not None:
        return False
    # The database may be read-only, or the tenant have no connection left.
    with contextlib.suppress(SQLAlchemyError, TenantBusy), tenant_tx(tenant_id) as tx:
        session_use.touch(tx, row.session_id, now=now)
        return True
    return False


def fetch(wanted: Iterable[tuple[str, str]]) -> None:
    """Have these sessions (tenant, session) in memory, so that `rights_of` does not wait: in one round trip."""

    def read(missing: Sequence[tuple[str, str]]) -> list[tuple[Rights | None, Sequence[str]]]:
        sessions: dict[str, list[str]] = {}
        for tenant_id, session_id in missing:
            sessions.setdefault(tenant_id, []).append(session_id)
        calls = [(tenant_id, _VALID_SESSIONS, (tenant_id, ids)) for tenant_id, ids in sessions.items()]
        found = {
            (tenant_id, str(row.session_id)): row
            for tenant_id, rows in zip(sessions, read_together(calls), strict=True)
            for row in rows
        }
        return [_answer_of(session_id, found.get((tenant_id, session_id))) for tenant_id, session_id in missing]

    liveness.fetch(wanted, _session_name, read)


def _answer_of(session_id: str, row: Any) -> tuple[Rights | None, Sequence[str]]:
    """What is kept of a session, by its row of `_VALID_SESSIONS`, and the names whose changes end that."""
    if row is None:
        return None, [_session_name(session_id)]
    return _rights_in(row), [*names_of(session_id, row.id), liveness.SETTINGS]


def _rights_in(row: Any) -> Rights:
    role, settings = Role(row.role), tenant_settings.of_overrides(row.overrides)
    sees_all = role is Role.ADMIN or row.sees_private or settings.signup_sees is VisiblePages.ALL
    ends_at = min(row.expires_at, row.last_used_at + session_use.idle_limit(settings, role))
    return Rights(
        role,
        public_only=not sees_all,
        must_change_password=row.must_change_password,
        expires_at=ends_at.timestamp(),
    )


# Of users who are not suspended, in a tenant that was not deleted. One round trip: the first call with each token asks.
# A suspension ends all sessions; what began after its end is valid, also before a job has removed it from the user.
# (No clock is asked about it: the answer is kept, so it must not become another one as time passes.)
_VALID_SESSIONS = """
    SELECT s.id AS session_id, u.id, u.role, u.sees_private, u.must_change_password, s.expires_at, s.last_used_at,
        ts.overrides
    FROM sessions s
    JOIN users u ON u.tenant_id = s.tenant_id AND u.id = s.user_id
    JOIN tenants t ON t.id = s.tenant_id
    LEFT JOIN tenant_settings ts ON ts.tenant_id = s.tenant_id
    WHERE s.tenant_id = %s AND s.id = ANY(%s::uuid[]) AND s.revoked_at IS NULL AND s.expires_at > now()
      AND (u.suspended_at IS NULL OR s.created_at >= u.suspended_until) AND t.deleted_at IS NULL
"""


def names_of(session_id: str, user_id: UUID) -> list[str]:
    """The names under which changes of a session's validity and rights are recorded, but for the tenant's settings."""
    return [_session_name(session_id), _user_name(user_id)]


def _session_name(session_id: str) -> str:
    return f"session:{session_id}"


def _user_name(user_id: UUID) -> str:
    """The name under which `liveness` has all sessions of a user, those that are just being started too."""
    return f"user:{user_id}"


def revoke(tx: Tx, session_id: UUID, *, now: datetime, user_id: UUID | None = None) -> bool:
    """End a session (of this user, if given)."""
    ended = (
        update(Session)
        .where(Session.id == session_id, Session.revoked_at.is_(None))
        .values(revoked_at=now)
        .returning(Session.id)
    )
    if user_id is not None:
        ended = ended.where(Session.user_id == user_id)
    if tx.scalar(ended) is None:
        return False
    liveness.record(tx, [_session_name(str(session_id))])
    return True


def is_live(tx: Tx, session_id: UUID) -> bool:
    """Whether nobody has ended this session, as the transaction sees it."""
    return tx.scalar(select(Session.id).where(Session.id == session_id, Session.revoked_at.is_(None))) is not None


def revoke_all(tx: Tx, user_id: UUID, *, now: datetime, except_id: UUID | None = None) -> int:
    """End every session of a user (but for one, if given), and revoke their static tokens. Returns how many ended.

    The user is locked first: a static token that is just being created is revoked too, or not created.
    """
    tx.execute(select(User.id).where(User.id == user_id).with_for_update(key_share=True))
    ended = update(Session).where(Session.user_id == user_id, Session.revoked_at.is_(None)).values(revoked_at=now)
    if except_id is not None:
        ended = ended.where(Session.id != except_id)
    static_tokens.revoke_all_of(tx, user_id, now=now)
    liveness.record(tx, [_user_name(user_id)])
    return len(tx.scalars(ended.returning(Session.id)).all())


def delete_all(tx: Tx, user_id: UUID) -> int:
    """End and delete every session and static token of a user. Returns how many sessions they were."""
    static_tokens.delete_all_of(tx, user_id)
    liveness.record(tx, [_user_name(user_id)])
    return len(tx.scalars(delete(Session).where(Session.user_id == user_id).returning(Session.id)).all())


def reset_password(tx: Tx, token: str, password_hash: str, *, now: datetime) -> tuple[UUID, int]:
    """Set the new password and end every session. Returns the user, and how many sessions have ended."""
    user_id = resets.consume(tx, token, password_hash, now=now)
    return user_id, revoke_all(tx, user_id, now=now)


def change_password(tx: Tx, user_id: UUID, password_hash: str, *, keep: UUID | None, now: datetime) -> int:
    """Set the new password of a user, who is locked; end every session but one. Returns how many have ended."""
    users.set_password(tx, user_id, password_hash, now=now)
    resets.delete_for(tx, user_id)
    return revoke_all(tx, user_id, now=now, except_id=keep)


def change_user(tx: Tx, user: User, changes: Mapping[str, Any], *, now: datetime) -> User:
    """Change a user. New rights and a suspension are effective from the commit on.

    A new role deletes open resets: their creator may not be allowed to reset the password of a user with that role.
    """
    changed = users.change(tx, user, changes, now=now)
    if "role" in changes:
        resets.delete_for(tx, user.id)
    if changes.get("suspended"):
        revoke_all(tx, user.id, now=now)
    if {"role", "sees_private"} & changes.keys():
        liveness.record(tx, [_user_name(user.id)])
    return changed


def get_own(tx: Tx, session_id: UUID, user_id: UUID) -> Session:
    session = tx.scalar(select(Session).where(Session.id == session_id, Session.user_id == user_id))
    if session is None:
        raise NotFound
    return session


def _tokens(tenant_id: str, user_id: UUID, session_id: UUID, refresh: str, signer: Signer, now: datetime) -> Tokens:
    claims = {"sub": str(user_id), "tenant": tenant_id, "sid": str(session_id), "kind": "user"}
    access = signer.sign(claims, ttl_s=ACCESS_TOKEN_TTL_S, now=now)
    return Tokens(access, refresh, ACCESS_TOKEN_TTL_S, session_id)


def _parse_refresh(token: str, signer: Signer) -> tuple[str, UUID]:
    """The tenant and session of a token that we issued. Knowing a session's id is not enough to forge one."""
    tenant_id = tenant_part(token, "rt_", BadRefreshToken)
    if not is_ours(token, signer):
        raise BadRefreshToken
    try:
        return tenant_id, UUID(hex=token.split("_")[2])
    except (ValueError, IndexError):
        raise BadRefreshToken from None
