"""What a browser sends: the wire format of the beacon, and the limits of addresses and visitors."""

from dataclasses import dataclass
from typing import Any

import msgspec
from limits import RateLimitItem

from analytics.ingest.pages import EXTERNAL_ID, MAX_URL_BYTES
from analytics.ingest.writes import EventKind
from tenants import throttle
from tenants.errors import Invalid
from tenants.settings import Limits
from tenants.throttle import TooMany


class Beacon(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """One view, like or unlike, as `plaudit.js` sends it."""

    page: str | None = None
    url: str | None = None
    type: str = EventKind.VIEW.value
    # For pages that create themselves.
    title: str | None = None
    canonical: str | None = None
    referrer: str | None = None
    # The reader, named by the site's server.
    user: str | None = None
    user_signature: str | None = None

    @property
    def kind(self) -> EventKind:
        return EventKind(self.type)

    @property
    def urls(self) -> list[str]:
        """Where the page may be found, in this order."""
        return [url for url in (self.url, self.canonical) if url and len(url.encode()) <= MAX_URL_BYTES]


def read(sent: Any) -> Beacon:
    """The beacon, or Invalid."""
    try:
        beacon = msgspec.convert(sent, Beacon)
    except msgspec.ValidationError as error:
        raise Invalid.field("body", str(error)) from None
    errors: dict[str, str] = {}
    if (beacon.page is None) == (beacon.url is None):
        errors["body"] = "either page or url"
    if beacon.type not in {kind.value for kind in EventKind}:
        errors["type"] = "view, like or unlike"
    elif beacon.kind is not EventKind.VIEW and (beacon.user is None or beacon.user_signature is None):
        errors["user_signature"] = "a like needs user and user_signature: the site signs for its reader"
    if beacon.user is not None and EXTERNAL_ID.fullmatch(beacon.user) is None:
        errors["user"] = "1 to 128 of A-Z, a-z, 0-9 and . _ ~ : @ -"
    if errors:
        raise Invalid.fields(errors)
    return beacon


@dataclass(frozen=True)
class BeaconLimits:
    """How many beacons of an address and of a visitor are accepted in a minute, and how many of an address are not.

    Refused ones and duplicates have limits of their own, so that they use up nothing of what is accepted: a page that
    does not exist, a robot, or a reader who reloads, behind the address of a whole company.
    """

    tenant_id: str
    network: str
    visitor: str
    limits: Limits

    def check(self) -> None:
        """Raises TooMany if the address or the visitor must wait."""
        of_address, of_visitor = self._of_address, self._of_visitor
        for name, item, who, detail in (
            ("beacon-refused", of_address, self.network, "Too many refused beacons from this address"),
            ("beacon-duplicate", of_address, self.network, "Too many beacons of views that are counted already"),
            ("beacon", of_address, self.network, "Too many beacons from this address"),
            ("beacon-visitor", of_visitor, self.visitor, "Too many beacons of this visitor"),
        ):
            state = throttle.look(name, item, self.tenant_id, who)
            if not state.is_allowed:
                raise TooMany(detail, state=state)

    def accepted(self) -> None:
        throttle.hit("beacon", self._of_address, self.tenant_id, self.network)
        throttle.hit("beacon-visitor", self._of_visitor, self.tenant_id, self.visitor)

    def duplicate(self) -> None:
        throttle.hit("beacon-duplicate", self._of_address, self.tenant_id, self.network)

    def refused(self) -> None:
        throttle.hit("beacon-refused", self._of_address, self.tenant_id, self.network)

    @property
    def _of_address(self) -> RateLimitItem:
        return throttle.per_minute(self.limits.beacons_per_minute)

    @property
    def _of_visitor(self) -> RateLimitItem:
        return throttle.per_minute(self.limits.visitor_beacons_per_minute)
