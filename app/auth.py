"""Who may call what. Every route declares it, and `tests/rules` fails for one that does not."""

import hmac
from collections.abc import Callable
from enum import Enum
from functools import wraps
from ipaddress import ip_address
from typing import Any, TypeVar

from flask import current_app, request

from tenants.errors import Forbidden

View = TypeVar("View", bound=Callable[..., Any])


class Access(Enum):
    """The kinds of route there are."""

    PUBLIC = "anyone"
    OPERATOR = "loopback, or the metrics token"


def public(view: View) -> View:
    """Anyone may call this route."""
    return _declare(view, Access.PUBLIC)


def operator(view: View) -> View:
    """Only the machine itself, or who holds PLAUDIT_METRICS_TOKEN."""

    @wraps(view)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        if not _is_operator():
            raise Forbidden("Only from this machine, or with the metrics token as a bearer token")
        return view(*args, **kwargs)

    return _declare(guarded, Access.OPERATOR)  # type: ignore[return-value]


def declared(view: Callable[..., Any]) -> Access | None:
    return getattr(view, "plaudit_access", None)


def _declare(view: View, access: Access) -> View:
    view.plaudit_access = access  # type: ignore[attr-defined]
    return view


def _is_operator() -> bool:
    token: str | None = current_app.config["METRICS_TOKEN"]
    if token is not None:
        given = request.headers.get("Authorization", "").removeprefix("Bearer ")
        return hmac.compare_digest(given.encode(), token.encode())
    # Behind a proxy of ours every address is what the proxy says; without one a forwarded request is not loopback.
    if request.headers.get("X-Forwarded-For") and not current_app.config["PROXY_HOPS"]:
        return False
    return ip_address(request.remote_addr or "0.0.0.0").is_loopback  # noqa: S104  stands for "unknown"
