"""The head of a request: what is refused by it, and its part of the WSGI environment.

A head that two servers on the way could read differently is refused, although llhttp accepts it: that is how a request
is smuggled into another client's connection.
"""

import re
from urllib.parse import unquote_to_bytes

import httptools

from app.server.requests import VERSIONS, Environ

# What a name, an address and a port consist of (RFC 3986), in any order. Two headers are joined by a comma.
HOST = re.compile(r"[A-Za-z0-9._~!$&'()*+;=%:\[\]-]*")


class NotAccepted(Exception):
    """Raised in a callback of the parser, which then stops."""


class HeadTooLarge(NotAccepted):
    """The request has too many headers, or too long ones."""


def complete(environ: Environ, url: bytes, parser: httptools.HttpRequestParser) -> None:
    """Add what the request line says to the headers in this environment. NotAccepted if the head is not valid."""
    target = httptools.parse_url(url)
    path = target.path or b"/"
    environ["PATH_INFO"] = (unquote_to_bytes(path) if b"%" in path else path).decode("latin-1")
    environ["QUERY_STRING"] = target.query.decode("latin-1") if target.query else ""
    environ["REQUEST_METHOD"] = parser.get_method().decode()
    environ["SERVER_PROTOCOL"] = version = f"HTTP/{parser.get_http_version()}"
    if version not in VERSIONS:
        raise NotAccepted("only HTTP/1.1 and HTTP/1.0 are accepted")
    coding = environ.get("HTTP_TRANSFER_ENCODING")
    if coding is not None and coding.lower() != "chunked":
        raise NotAccepted("the only transfer coding is chunked")
    host = environ.get("HTTP_HOST")
    if host is None and version == "HTTP/1.1":
        raise NotAccepted("the Host header is missing")
    if host is not None and HOST.fullmatch(host) is None:  # of two, a proxy may have decided by the other one
        raise NotAccepted("one Host header with a valid host is needed")


def body_length(environ: Environ) -> int | None:
    """As the head says it. None: the body is chunked."""
    return None if "HTTP_TRANSFER_ENCODING" in environ else int(environ.get("CONTENT_LENGTH") or 0)


def waits_for_invitation(environ: Environ) -> bool:
    """Whether the client waits for `100 Continue` before it sends the body."""
    is_new = environ["SERVER_PROTOCOL"] == "HTTP/1.1"
    return is_new and str(environ.get("HTTP_EXPECT", "")).lower() == "100-continue"
