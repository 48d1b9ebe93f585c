"""Who may open a socket or stream: looked at before the upgrade, so that a refusal is an ordinary HTTP answer.

A ticket says who it is. A browser also says which page it is on (`Origin`), and only our own and the tenant's own
count: any page could otherwise use a ticket that leaked to it. A client without an Origin is no browser.

A stream that broke off is opened again by the browser itself, at the same address and so with a ticket that is spent.
Then its `Last-Event-ID` counts, a header that carries our word for who had the stream.
"""

import base64
import hmac
import time
from dataclasses import asdict, dataclass
from urllib.parse import urlsplit

import orjson
from flask import request

from app.http.auth import NoCredentials, OriginNotAllowed, Reader
from app.http.services import essentials
from tenants import credentials, registry, tickets
from tenants import settings as tenant_settings
from tenants.db import TENANT_ID, tenant_tx, utcnow
from tenants.tickets import BadTicket, Holder

RESUMES_FOR_S = 24 * 3600
USUAL_PORTS = {"http": 80, "https": 443}
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


@dataclass(frozen=True)
class Guest:
    """Somebody who may come in. Without a holder: anybody, to a scoreboard that is public."""

    reader: Reader
    holder: Holder | None

    def reader_now(self) -> Reader | None:
        """As whom they read from now on; None: they may not be here any more."""
        if self.holder is not None:
            return _reader_of(self.holder)
        return self.reader if _is_public(self.reader.tenant_id) else None


def by_ticket() -> Guest:
    ticket = request.args.get("ticket", "")
    if not ticket:
        raise NoCredentials("Open it with a ticket from POST /api/v1/live/tickets: ?ticket=…")
    return _checked(_guest(tickets.consume(ticket, now=utcnow())))


def by_ticket_or_resumed() -> tuple[Guest, int]:
    """Also who was here before, and the number of what they got last."""
    said = request.headers.get("Last-Event-ID", "")
    seq, _, word = said.partition(".")
    holder = _holder(word) if seq.isascii() and seq.isdigit() and len(seq) < 16 else None
    if holder is not None:
        return _checked(_guest(holder)), int(seq)
    return by_ticket(), 0


def to_scoreboard() -> Guest:
    """With a ticket; or anybody by naming the tenant, if it has made its scoreboard public."""
    if "ticket" in request.args or "tenant" not in request.args:
        return by_ticket()
    tenant_id = request.args["tenant"]
    if not _is_public(tenant_id):  # whether there is such a tenant is not said
        raise NoCredentials("This scoreboard is not public: open it with a ticket from POST /api/v1/live/tickets")
    return _checked(Guest(Reader.anonymous(tenant_id), None))


def word_for(holder: Holder) -> str:
    """What goes into the ids of a stream's events, and brings its holder back in."""
    said = base64.urlsafe_b64encode(orjson.dumps({**asdict(holder), "at": int(time.time())})).decode().rstrip("=")
    return f"{said}.{essentials().signer.mac(f'resume {said}')}"


def _holder(word: str) -> Holder | None:
    said, _, mac = word.partition(".")
    if not word.isascii() or not hmac.compare_digest(mac, essentials().signer.mac(f"resume {said}")):
        return None
    fields = orjson.loads(base64.urlsafe_b64decode(said + "=" * (-len(said) % 4)))
    if time.time() - fields.pop("at") > RESUMES_FOR_S:
        return None
    return Holder(**fields)


def _guest(holder: Holder) -> Guest:
    reader = _reader_of(holder)
    if reader is None:
        raise BadTicket("The session, client or key that this ticket was made with is not valid any more")
    return Guest(reader, holder)


def _reader_of(holder: Holder) -> Reader | None:
    public_only = holder.sees_public_only()
    if public_only is None:
        return None
    return Reader(holder.tenant_id, public_only=public_only, is_anonymous=holder.kind == "key")


def _is_public(tenant_id: str) -> bool:
    if TENANT_ID.fullmatch(tenant_id) is None:
        return False
    with tenant_tx(tenant_id) as tx:
        return registry.is_live(tx, tenant_id) and tenant_settings.read(tx)[0].public_scoreboard


def _checked(guest: Guest) -> Guest:
    origin = request.headers.get("Origin")
    if origin is None or origin in own_origins() or origin in _origins_of(guest):
        return guest
    raise OriginNotAllowed("Sockets are for pages of this service, and of the origins that the tenant allows")


def own_origins() -> set[str]:
    """Where our own pages are from, and where the sockets are. A machine is the same by each name it has for itself."""
    settings = essentials().settings
    found = set()
    for url in (settings.public_url, settings.live_url):
        parts = urlsplit(url)
        scheme, host = parts.scheme.replace("ws", "http"), parts.hostname or ""
        host = f"[{host}]" if ":" in host else host
        port = f":{parts.port}" if parts.port not in {None, USUAL_PORTS[scheme]} else ""
        found |= {f"{scheme}://{name}{port}" for name in (LOOPBACK if host in LOOPBACK else (host,))}
    return found


def _origins_of(guest: Guest) -> frozenset[str] | set[str]:
    if guest.holder is not None and guest.holder.kind == "key":
        key = credentials.find_key(guest.holder.id)
        return key.origins if key is not None else frozenset()
    return set(tenant_settings.recent(guest.reader.tenant_id).allowed_origins)
