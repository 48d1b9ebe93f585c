"""Addresses compared as browsers mean them: one normaliser, for what a page is written with and what a browser sends.

Two addresses are the same if they differ only in: http or https; `www.`; the case of the host, or an international one
written in ASCII (punycode); a default port; a password; percent-encoding; dot segments; an empty path or a trailing
slash; the order of the query's names; parameters that say where a visitor came from (`TRACKING`); a fragment, unless it
is the route of a single-page app (`#/…`, `#!…`).

An address is absolute (`host[:port]/path?query`) or a path (`/path?query`), which is valid on every origin that a
publishable key allows. Nothing here raises for any text, or takes more than linear time (a query's names are sorted).
"""

import hashlib
import re
import unicodedata
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from ipaddress import IPv6Address
from itertools import takewhile
from typing import Self
from urllib.parse import unquote

# Parameters that say how a visitor came to a page, and never which page it is. In lower case.
TRACKING = frozenset(
    {
        *("fbclid", "gclid", "gclsrc", "gbraid", "wbraid", "dclid", "msclkid", "yclid", "ttclid", "twclid", "rdt_cid"),
        *("li_fat_id", "igshid", "igsh", "epik", "scclid", "srsltid", "ref", "ref_src", "ref_url"),
        *("mc_cid", "mc_eid", "mkt_tok", "_hsenc", "_hsmi", "hsctatracking", "vero_id", "_kx", "ck_subscriber_id"),
        *("_ga", "_gl", "_openstat", "pk_campaign", "pk_kwd", "pk_source", "pk_medium", "piwik_campaign", "piwik_kwd"),
    }
)
TRACKING_PREFIXES = ("utm_", "mtm_", "hsa_")

# What an index can have, beside the tenant: a longer address is stored as its beginning and its hash.
MAX_KEY_BYTES = 2048
MAX_HOST_CHARS = 253
MAX_LABEL_CHARS = 63
MAX_CACHED_ORIGINS = 10_000
MAX_PORT = 65535
# Of http and of https, which are the same here.
DEFAULT_PORTS = frozenset({"80", "443"})

# What browsers remove from an address: blanks and control characters around it, tabs and line ends also inside.
_AROUND = "".join(map(chr, range(0x21)))
_INSIDE = {ord(character): None for character in "\t\r\n"}
_SCHEME = re.compile(r"https?://", re.IGNORECASE)
_HOST = re.compile(r"[a-z0-9._-]+")
_IGNORED_IN_HOSTS = {ord(character): None for character in "\u00ad\u200b\u2060\ufeff"}
_DOTS = str.maketrans(dict.fromkeys("\u3002\uff0e\uff61", "."))
# A byte that is encoded, or a character that browsers encode in this place. A lone % too: next to what is decoded it
# could become the start of another encoded byte.
_ENCODED_IN_PATH = re.compile(r"%[0-9A-Fa-f]{2}|[^A-Za-z0-9._~!$&'()*+,;=:@/|\[\]-]")
_ENCODED_IN_QUERY = re.compile(r"%[0-9A-Fa-f]{2}|[^A-Za-z0-9._~!$&()*+,;=:@/?|\[\]^`{}\\-]")
_ENCODED_IN_FRAGMENT = re.compile(r"%[0-9A-Fa-f]{2}|[^A-Za-z0-9._~!$&'()*+,;=:@/?|\[\]^{}#\\-]")
_UNRESERVED = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")


@dataclass(frozen=True)
class Address:
    """A normalised address. Its `text` is the same for all addresses that mean the same."""

    # With its port, if that is no default one; empty: this is a path.
    host: str
    path: str
    query: str = ""
    fragment: str = ""

    @classmethod
    def parse(cls, url: str) -> Self | None:
        """The address that a browser opens for this text; None: it is neither http nor https nor an absolute path."""
        text, _, fragment = url.strip(_AROUND).translate(_INSIDE).partition("#")
        text, _, query = text.partition("?")
        text = text.replace("\\", "/")
        host = ""
        if (scheme := _SCHEME.match(text)) is not None:
            authority, slash, path = text[scheme.end() :].partition("/")
            host, path = _host_and_port(authority) or "", slash + path
            if not host:
                return None
        elif text.startswith("/") and not text.startswith("//"):
            path = text
        else:
            return None
        return cls(host, _path(path), _query(query), _fragment(fragment))

    @property
    def text(self) -> str:
        # A path may not begin with two slashes: that would be a host.
        dot = "/." if not self.host and self.path.startswith("//") else ""
        query = f"?{self.query}" if self.query else ""
        fragment = f"#{self.fragment}" if self.fragment else ""
        return f"{self.host}{dot}{self.path}{query}{fragment}"

    @property
    def key(self) -> str:
        """The text as it is stored and looked up."""
        return _key(self.text)

    @property
    def is_path(self) -> bool:
        return not self.host

    def as_path(self) -> Self:
        return replace(self, host="")

    def without_query(self) -> Self:
        return replace(self, query="", fragment=route_of(self.fragment))


def key_of(url: str) -> str:
    """The normalised address of a page, as it is stored. What no browser opens stands for itself."""
    address = Address.parse(url)
    return address.key if address is not None else _key(url)


def candidates(urls: Sequence[str], origins: Collection[str]) -> list[str]:
    """The keys under which a page at one of these addresses may be stored, the best first.

    Each address as it is, and then each without its query; both first absolute, and then as a path, which is valid on
    these origins only. (A browser's address that is a path already is on one of them.)
    """
    parsed = [address for url in urls if (address := Address.parse(url)) is not None]
    hosts = {_host_of(origin) for origin in origins} if parsed else set()
    exact = [one for address in parsed for one in _forms(address, hosts)]
    without_query = [one for address in parsed for one in _forms(address.without_query(), hosts)]
    return list(dict.fromkeys(address.key for address in (*exact, *without_query)))


def _forms(address: Address, hosts: Collection[str | None]) -> Iterable[Address]:
    yield address
    if not address.is_path and address.host in hosts:
        yield address.as_path()


@lru_cache(MAX_CACHED_ORIGINS)
def _host_of(origin: str) -> str | None:
    address = Address.parse(origin)
    return address.host if address is not None else None


def _key(text: str) -> str:
    encoded = text.encode(errors="replace")
    if len(encoded) <= MAX_KEY_BYTES:
        return text
    digest = hashlib.sha256(encoded).hexdigest()
    return f"{encoded[: MAX_KEY_BYTES - 100].decode(errors='ignore')}…{digest}"


def _host_and_port(authority: str) -> str | None:
    """None: no browser opens it."""
    host_and_port = authority.rpartition("@")[2]
    host, colon, port = host_and_port.rpartition(":")
    if not colon or host_and_port.endswith("]"):  # the colon is one of an IPv6 address
        host, port = host_and_port, ""
    digits = port.lstrip("0") or "0"
    if port and not (port.isascii() and port.isdigit() and len(digits) <= 5 and int(digits) <= MAX_PORT):
        return None
    known = _ipv6(host) if host.startswith("[") else _domain(host)
    return f"{known}:{digits}" if known and port and digits not in DEFAULT_PORTS else known


def _ipv6(host: str) -> str | None:
    try:
        return f"[{IPv6Address(host[1:-1]).compressed}]" if host.endswith("]") and "%" not in host else None
    except ValueError:
        return None


def _domain(host: str) -> str | None:
    if len(host) > MAX_HOST_CHARS * 9:  # each character of an international name may be three encoded bytes
        return None
    host = unquote(host)
    if not host.isascii():
        # As browsers do (UTS 46), up to characters that no name may have. Unlike in Python's "idna", ß is not ss.
        host = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", host.translate(_DOTS)).lower())
        labels = [_label(label) for label in host.translate(_DOTS).translate(_IGNORED_IN_HOSTS).split(".")]
        if None in labels:
            return None
        host = ".".join(label or "" for label in labels)
    host = host.lower().rstrip(".")
    while host.startswith("www.") and "." in host[4:]:
        host = host[4:]
    return host if len(host) <= MAX_HOST_CHARS and _HOST.fullmatch(host) is not None else None


def _label(label: str) -> str | None:
    """A part of an international name in ASCII."""
    if label.isascii():
        return label
    if len(label) > MAX_LABEL_CHARS or "\ufffd" in label:  # encoding takes quadratic time
        return None
    try:
        return f"xn--{label.encode('punycode').decode('ascii')}"
    except UnicodeError:
        return None


def _path(path: str) -> str:
    kept: list[str] = []
    for segment in _encoded(path, _ENCODED_IN_PATH).removeprefix("/").split("/"):
        if segment not in {".", ".."}:
            kept.append(segment)
        elif segment == ".." and kept:
            kept.pop()
    return f"/{'/'.join(kept).rstrip('/')}"


def _query(query: str) -> str:
    """Sorted by name; values of the same name stay in their order, which may matter."""
    parts = [part for part in _encoded(query, _ENCODED_IN_QUERY).split("&") if part and not _is_tracking(part)]
    return "&".join(sorted(parts, key=_name))


def _name(part: str) -> str:
    return part.partition("=")[0]


def _is_tracking(part: str) -> bool:
    name = _name(part).lower()
    return name in TRACKING or name.startswith(TRACKING_PREFIXES)


def _fragment(fragment: str) -> str:
    return _encoded(fragment, _ENCODED_IN_FRAGMENT) if fragment.startswith(("/", "!")) else ""


def route_of(fragment: str) -> str:
    """The route of a single-page app without its values: up to its query, or the first part with a name and a value."""
    parts = fragment.partition("?")[0].split("&")
    return "&".join(takewhile(lambda part: "=" not in part, parts))


def _encoded(text: str, pattern: re.Pattern[str]) -> str:
    return pattern.sub(_encode, text)


def _encode(match: re.Match[str]) -> str:
    found = match[0]
    if len(found) == 3:
        character = chr(int(found[1:], 16))
        return character if character in _UNRESERVED else found.upper()
    return "".join(f"%{byte:02X}" for byte in found.encode(errors="replace"))
