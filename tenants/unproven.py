"""Credentials without a proof that we issued them, which anybody can make up.

Publishable keys and tickets contain a MAC (`tenants.opaque_tokens`), so most of those that are made up cost no look-up
at the expense of the tenant that they name. One without a right MAC may still be valid: it was issued by an earlier
release, or with another PLAUDIT_SECRET_KEY, as those of a restored backup. So it is looked up, at the expense of the
network that sends it: so many in a minute, and few at once for all networks together, which they share, on no tenant's
share of the connections. That it does not exist is not remembered, so nobody can fill a memory with what they make up.
One that does exist is remembered, and from then on as good as one with a MAC.

OAuth clients have no MAC in their ids: they are looked up in the same way until they are known here, but for the limit
of the minute, which the token endpoint has itself.
"""

from collections.abc import Sequence
from typing import Any

from tenants import group_tx, throttle
from tenants.errors import Limited
from tenants.fair_cache import FairCache, Groups
from tenants.shares import NOBODY, TenantBusy, TenantShare

PER_NETWORK = throttle.per_minute(60)
# Connections of the process's pool, and requests that wait for them.
MAX_AT_ONCE = 2
MAX_WAITING = 64
# Names of credentials that were found.
MAX_FOUND = 20_000
MAX_FOUND_OF_TENANT = MAX_FOUND // 2


def exists(
    tenant_id: str, name: str, statement: str, values: Sequence[Any], *, network: str, is_limited: bool = True
) -> bool:
    """Whether the credential with this name exists: whether the statement returns a row, or once did.

    `is_limited`: at most so many of a network in a minute; else the caller has a limit itself.
    """
    if (tenant_id, name) in _found:
        return True
    if is_limited:
        throttle.require("unproven", PER_NETWORK, network, detail="Too many unknown credentials from this address")
    try:
        _at_once.acquire(NOBODY, network)
    except TenantBusy:
        raise Limited("Too many unknown credentials at once", retry_after_s=1) from None
    try:
        if (tenant_id, name) in _found:  # by one who was before us: a page's readers all send its old key
            return True
        is_there = group_tx.read_one(tenant_id, statement, values) is not None
    finally:
        _at_once.release(NOBODY, network)
    if is_there:
        _found.put((tenant_id, name), True)
    return is_there


def _groups_of(found: tuple[str, str], _value: bool) -> Groups:
    """The tenant, and all, and how many names of each are kept."""
    return ((found[0],), MAX_FOUND_OF_TENANT), ((), MAX_FOUND)


_found: FairCache[tuple[str, str], bool] = FairCache(_groups_of)
_at_once = TenantShare(MAX_AT_ONCE, max_waiting=MAX_WAITING)
