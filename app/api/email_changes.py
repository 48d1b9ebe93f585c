"""A user who changes their own e-mail address confirms it with the password.

Otherwise whoever gets hold of a session could have the next password sent to an address of their own.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar
from uuid import UUID

from flask import request

from app.http import password_attempts
from app.http.auth import current_actor
from app.http.body import read_json, replace_json
from app.http.password_attempts import WrongPassword
from app.http.transactions import actor_tx
from tenants import users
from tenants.db import Tx
from tenants.users import User, UserNotFound

View = TypeVar("View", bound=Callable[..., Any])


def confirms_email(view: View) -> View:
    """Require `password` beside another `email` of one's own.

    Place it above `@idempotent`, which opens a transaction: hashing is slow.
    """

    @wraps(view)
    def confirmed(user: str) -> Any:
        changes = read_json(request.environ)
        if isinstance(changes, dict) and changes.get("email") is not None and current_actor().kind == "user":
            _require_password(user, changes)
        if isinstance(changes, dict) and isinstance(changes.get("password"), str):
            # `@idempotent` keeps a hash of the body, by which a password could be guessed quickly.
            replace_json(request.environ, {name: value for name, value in changes.items() if name != "password"})
        return view(user=user)

    return confirmed  # type: ignore[return-value]


def _find(tx: Tx, reference: str, own_id: UUID) -> User | None:
    """The user a path names. None: the route says what is wrong."""
    try:
        return users.get(tx, own_id) if reference == "me" else users.find(tx, reference)
    except UserNotFound:
        return None


def _require_password(reference: str, changes: dict[str, Any]) -> None:
    actor = current_actor()
    with actor_tx() as tx:
        target = _find(tx, reference, actor.user_id)
        if target is None or target.id != actor.user_id or target.email == changes["email"]:
            return
    if not isinstance(changes.get("password"), str):
        raise WrongPassword.field("password", "your password is needed where your e-mail address changes")
    password_attempts.by_session(actor.tenant_id, actor.user_id).require_right(changes["password"])
