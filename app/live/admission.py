"""Who may open a socket or stream: checked before the upgrade, so that a refusal is an ordinary HTTP answer.

A ticket identifies its holder. A browser also sends the origin of its page (`Origin`), and only our own origins and the
tenant's are allowed: any page could otherwise use a ticket that leaked to it. A client without an Origin is no browser.

A browser reopens a broken stream at the same address, and so with a ticket that is spent. Then its `Last-Event-ID` is
accepted instead: it carries a token, signed by us, that identifies the holder of the stream.
"""

import base64
import hmac
import time
from dataclasses import asdict, dataclass
from urllib.parse import urlsplit

import orjson
from flask import request

from app.http.auth import NoCredentials, OriginNotAllowed, Reader, caller_network
from app.http.services import essentials
from tenants import credentials, liveness, registry, tickets
from tenants import settings as tenant_settings
from tenants.db import TENANT_ID, tenant_tx, utcnow
from tenants.signing import Signer
from tenants.tickets import BadTicket, Holder

# Each stream's token is renewed while it is open.
MAX_RESUME_AGE_S = 3600
# The name under which `liveness` keeps whether a tenant's scoreboard is public.
SCOREBOARD = "scoreboard"
DEFAULT_PORTS = {"http": 80, "https": 443}
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


@dataclass(frozen=True)
class Guest:
    """A caller who may connect. Without a holder: an anonymous reader of a public scoreboard."""

    reader: Reader
    holder: Holder | None

    def reader_now(self) -> Reader | None:
        """The reader with the rights it has now; None: it may no longer be connected."""
        if self.holder is not None:
            return _reader_of(self.holder)
        tenant_id = self.reader.tenant_id
        is_public = liveness.look_up(tenant_id, SCOREBOARD, lambda: (_is_public(tenant_id), [liveness.SETTINGS]))
        return self.reader if is_public else None


def admit_by_ticket() -> Guest:
    ticket = request.args.get("ticket", "")
    if not ticket:
        raise NoCredentials("Open it with a ticket from POST /api/v1/live/tickets: ?ticket=…")
    holder = tickets.consume(ticket, signer=essentials().signer, network=caller_network(), now=utcnow())
    return _check_origin(_guest(holder))


def admit_by_ticket_or_resume() -> tuple[Guest, int]:
    """By a ticket, or to resume a stream: then also the number of the last event that the client received."""
    seq, _, token = request.headers.get("Last-Event-ID", "").partition(".")
    holder = _holder_in(token) if seq.isascii() and seq.isdigit() and len(seq) < 16 else None
    if holder is not None:
        return _check_origin(_guest(holder)), int(seq)
    return admit_by_ticket(), 0


def admit_to_scoreboard() -> Guest:
    """By a ticket; or anonymously by naming a tenant whose scoreboard is public."""
    if "ticket" in request.args or "tenant" not in request.args:
        return admit_by_ticket()
    tenant_id = request.args["tenant"]
    if not _is_public(tenant_id):  # the same answer if the tenant does not exist
        raise NoCredentials("This scoreboard is not public: open it with a ticket from POST /api/v1/live/tickets")
    return _check_origin(Guest(Reader.anonymous(tenant_id), None))


def resume_token(holder: Holder, signer: Signer) -> str:
    """The part of a stream's event ids with which its holder can resume it."""
    payload = base64.urlsafe_b64encode(orjson.dumps({**asdict(holder), "at": int(time.time())})).decode().rstrip("=")
    return f"{payload}.{signer.mac(f'resume {payload}')}"


def _holder_in(token: str) -> Holder | None:
    """The holder that a resume token names; None: the token is forged or too old."""
    payload, _, mac = token.partition(".")
    if not token.isascii() or not hmac.compare_digest(mac, essentials().signer.mac(f"resume {payload}")):
        return None
    fields = orjson.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    if time.time() - fields.pop("at") > MAX_RESUME_AGE_S:
        return None
    return Holder(**fields)


def _guest(holder: Holder) -> Guest:
    reader = _reader_of(holder)
    if reader is None:
        raise BadTicket("The session, client or key that this ticket was issued to is no longer valid")
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


def _check_origin(guest: Guest) -> Guest:
    origin = request.headers.get("Origin")
    if origin is None or origin in own_origins() or origin in _origins_of(guest):
        return guest
    raise OriginNotAllowed("Only pages of this service and of the tenant's allowed origins may open sockets")


def own_origins() -> set[str]:
    """The origins of our own pages and of the sockets. The names of the loopback address are one machine."""
    settings = essentials().settings
    origins = set()
    for url in (settings.public_url, settings.live_url):
        parts = urlsplit(url)
        scheme, host = parts.scheme.replace("ws", "http"), parts.hostname or ""
        host = f"[{host}]" if ":" in host else host
        port = f":{parts.port}" if parts.port not in {None, DEFAULT_PORTS[scheme]} else ""
        origins |= {f"{scheme}://{name}{port}" for name in (LOOPBACK if host in LOOPBACK else (host,))}
    return origins


def _origins_of(guest: Guest) -> frozenset[str] | set[str]:
    if guest.holder is not None and guest.holder.kind == "key":
        key = credentials.find_key(guest.holder.id)
        return key.origins if key is not None else frozenset()
    return set(tenant_settings.recent(guest.reader.tenant_id).allowed_origins)
