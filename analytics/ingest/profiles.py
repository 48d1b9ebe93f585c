"""Names and pictures of users that come with events, and are applied when the event is accepted.

Of several in a transaction the last one decides, field by field. A user is never created for a profile, and a row is
written only where something differs: the SQL function `apply_profiles` (migration 0025).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING
from uuid import UUID

from analytics.ingest.reasons import Reason, Refused, Result
from analytics.scores.actions import Payment
from tenants import profiles
from tenants.db import Tx

if TYPE_CHECKING:
    from analytics.ingest.writes import WriteRequest


@dataclass(frozen=True, slots=True)
class Profile:
    """What an event says of its user; None: nothing."""

    user: str
    display_name: str | None
    avatar_url: str | None


def check(user: str, name: str | None, avatar_url: str | None) -> Profile | None:
    """The profile, or Refused; None if it says nothing."""
    display_name = name.strip() if name is not None else None
    if display_name is not None and not profiles.is_display_name(display_name):
        raise Refused(Reason.INVALID, f"user.name: {profiles.DISPLAY_NAME}")
    if avatar_url is not None and not profiles.is_picture_url(avatar_url):
        raise Refused(Reason.INVALID, f"user.avatar_url: {profiles.PICTURE_URL}")
    return Profile(user, display_name, avatar_url) if display_name or avatar_url else None


def apply(tx: Tx, requests: Sequence["WriteRequest"], *, now: datetime) -> None:
    """Write the profiles of accepted events, once all have their outcomes; boards follow."""
    names: dict[str, str | None] = {}
    avatars: dict[str, str | None] = {}
    for profile in _accepted(requests):
        names[profile.user] = profile.display_name or names.get(profile.user)
        avatars[profile.user] = profile.avatar_url or avatars.get(profile.user)
    if names:
        tx.call(_APPLY, (tx.tenant, list(names), list(names.values()), list(avatars.values()), now))


def _accepted(requests: Sequence["WriteRequest"]) -> Iterator[Profile]:
    for request in requests:
        for place, profile in request.profiles_of_items.items():
            if request.outcomes[place].result is Result.ACCEPTED:
                yield profile
        for place, profile in request.profiles_of_claims.items():
            paid = request.payments[place]
            if isinstance(paid, Payment) and not paid.is_replay:
                yield profile


def lock_with_claims(tx: Tx, requests: Sequence["WriteRequest"], *, room: int, now: datetime) -> int:
    """Lock the users whose profile may change, and those of the claims, by id, before claims are paid.

    Returns how many users were created: those of the claims, which must exist before any is locked. Without profiles of
    other users there is nothing to do, since paying locks its own.
    """
    users = list({profile.user for request in requests for profile in request.profiles_of_items.values()})
    if not users:
        return 0
    claims = [claim for request in requests for claim in request.claims]
    row = tx.call(
        _LOCK,
        (
            tx.tenant,
            users,
            [claim.user if isinstance(claim.user, UUID) else None for claim in claims],
            [claim.user if isinstance(claim.user, str) else None for claim in claims],
            [claim.action_type for claim in claims],
            room,
            now,
        ),
    )[0]
    return int(row.created)


_APPLY = "SELECT apply_profiles(%s, %s::text[], %s::text[], %s::text[], %s::timestamptz)"
_LOCK = """
    SELECT lock_claims_and_profiles(
        %s, %s::text[], %s::uuid[], %s::text[], %s::text[], %s::bigint, %s::timestamptz) AS created
"""
