"""Attempts at a user's password: how many there may be, and whose turn it is to be checked.

At an account few from one network and more from all together; at all accounts of a tenant together as many as its
setting `logins_per_minute` allows. But others can lock nobody out: a device that the user has used before is only
limited by itself, and its attempts have a queue of their own (`tenants.passwords`). The answer, and the work, are the
same for an unknown tenant or user; all unknown tenants together are as one.
"""

from dataclasses import dataclass
from uuid import UUID

from flask import request

from app.http.auth import caller_network
from tenants import logs, passwords, registry, sessions, throttle, users
from tenants import settings as tenant_settings
from tenants.db import TENANT_ID, Tx, tenant_tx, utcnow
from tenants.errors import Forbidden, NotFound
from tenants.passwords import Party
from tenants.security_events import SecurityEvent
from tenants.settings import Limits
from tenants.throttle import State, TooMany
from tenants.users import User

PER_ACCOUNT_AND_NETWORK = throttle.per_minute(10)
PER_ACCOUNT = throttle.per_minute(60)
PER_ADDRESS = throttle.per_minute(100)


class WrongPassword(Forbidden):
    code = "wrong_password"
    title = "The password is not right"


@dataclass(frozen=True)
class Attempt:
    """An attempt that is allowed. The user is None if there is none of this name."""

    user: User | None
    party: Party

    def is_right(self, password: str) -> bool:
        """Whether this is the user's password. Slow: ask outside of transactions."""
        stored = self.user.password_hash if self.user is not None else None
        return passwords.verify_password(stored, password[: passwords.MAX_CHARS], party=self.party)

    def require_right(self, password: str) -> User:
        """The user, if this is their password. Slow, as `is_right`."""
        if self.user is None or not self.is_right(password):
            logs.audit(SecurityEvent.LOGIN_FAILED, account=self.user.username if self.user is not None else None)
            raise WrongPassword
        return self.user


@dataclass(frozen=True)
class _Found:
    """What is known of who is named. Without a tenant: there is none of this name."""

    tenant_id: str = ""
    user: User | None = None
    is_known_device: bool = False


def at_login(tenant_id: str, username: str) -> Attempt:
    """An attempt to log in; raises TooMany."""
    of_account = _require_few(tenant_id, username)
    found = _find(tenant_id, username)
    _require_allowed(of_account, "Too many logins for this account", found)
    limit = throttle.per_minute(_limit_of(found.tenant_id))
    of_tenant = throttle.hit("login-tenant", limit, found.tenant_id)
    _require_allowed(of_tenant, "Too many logins from new devices at once: try again later", found)
    return Attempt(found.user, Party(found.tenant_id, found.is_known_device))


def by_session(tenant_id: str, user_id: UUID) -> Attempt:
    """An attempt of a user with a session, to confirm a change; raises TooMany. It counts as a login of the account."""
    with tenant_tx(tenant_id) as tx:
        user = users.get(tx, user_id)
    name = user.username or str(user_id)
    of_account = _require_few(tenant_id, name)
    if not of_account.is_allowed:
        _require_allowed(of_account, "Too many logins for this account", _find(tenant_id, name))
    return Attempt(user, Party(tenant_id, is_known=True))


def require_few_of_network(what: str) -> None:
    throttle.require(what, PER_ADDRESS, caller_network(), detail="Too many attempts from this address")


def agent() -> str | None:
    return request.headers.get("User-Agent")


def _require_few(tenant_id: str, username: str) -> State:
    """Count an attempt; few from this network are allowed. Returns whether more from all networks are."""
    require_few_of_network("login-address")
    account = (tenant_id[:64], username[:64].lower())
    throttle.require(
        "login", PER_ACCOUNT_AND_NETWORK, *account, caller_network(), detail="Too many logins: try again later"
    )
    return throttle.hit("login-account", PER_ACCOUNT, *account)


def _require_allowed(state: State, detail: str, found: _Found) -> None:
    if not state.is_allowed and not found.is_known_device:
        raise TooMany(detail, state=state)


def _limit_of(tenant_id: str) -> int:
    return (tenant_settings.recent(tenant_id).limits if tenant_id else Limits()).logins_per_minute


def _find(tenant_id: str, username: str) -> _Found:
    if TENANT_ID.fullmatch(tenant_id) is None:
        return _Found()
    with tenant_tx(tenant_id) as tx:
        try:
            registry.get(tx, tenant_id)
        except NotFound:
            return _Found()
        return _Found(tenant_id, users.by_username(tx, username), _is_known_device(tx, username))


def _is_known_device(tx: Tx, username: str) -> bool:
    """Whether this user had a session from this network and browser. For an unknown user it does the same work."""
    return sessions.is_known_device(tx, username, network=caller_network(), agent=agent(), now=utcnow())
