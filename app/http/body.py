"""Reading a request's body strictly, within limits.

JSON must be UTF-8 without NaN, lone surrogates or NUL characters, nested at most `MAX_DEPTH` deep, and at most
`MAX_BODY_BYTES` long, also after unpacking gzip. Anything else is a 4xx with the reason.
"""

import contextlib
import zlib
from typing import Any

import orjson
from flask import Request

from tenants.errors import DomainError, Invalid, Malformed, TooLarge, WrongType

MAX_BODY_BYTES = 1024 * 1024
# For public routes.
MAX_PUBLIC_BODY_BYTES = 16 * 1024
MAX_DEPTH = 32
# Lists, objects and commas: a batch has about ten thousand. More would take long to parse for few bytes.
MAX_VALUES = 40_000
# In the WSGI environment: how many bytes the body may have, if fewer than usual.
MAX_BYTES = "plaudit.max_body_bytes"
INCOMPLETE = "The body ended before it was complete"
_NUL_ESCAPE = b"\\u0000"


Environ = dict[str, Any]


def read_json(environ: Environ) -> Any:
    """The body of the request, which must be JSON."""
    kind = environ.get("CONTENT_TYPE", "")
    if kind != "application/json" and not Request(environ).is_json:
        raise WrongType("Send JSON with Content-Type: application/json")
    return parse_json(read_bytes(environ))


def has_body(environ: Environ) -> bool:
    """Whether the client sent a body; a chunked one may be empty."""
    return environ.get("CONTENT_LENGTH", "0") not in {"", "0"} or "HTTP_TRANSFER_ENCODING" in environ


def read_bytes(environ: Environ) -> bytes:
    """The whole body, unpacked if it is gzip. Read once: later calls return the same body, or raise the same error."""
    body: bytes | DomainError | None = environ.get("plaudit.body")
    if body is None:
        try:
            body = _unpack(environ, _read(environ))
        except DomainError as error:
            body = error
        environ["plaudit.body"] = body
    if isinstance(body, DomainError):
        raise body
    return body


def replace_json(environ: Environ, value: Any) -> None:
    """Have the request go on as if this had been its body."""
    environ["plaudit.body"] = orjson.dumps(value)


def receive(environ: Environ) -> None:
    """Wait for the body, if there is one. An error is raised by the first `read_bytes` of the route."""
    if has_body(environ):
        with contextlib.suppress(DomainError):
            read_bytes(environ)


def _limit(environ: Environ) -> int:
    return int(environ.get(MAX_BYTES, MAX_BODY_BYTES))


def _read(environ: Environ) -> bytes:
    """What the client sent, read from the server's stream."""
    try:
        return _receive(environ)
    except OSError:
        raise Malformed(INCOMPLETE) from None


def _receive(environ: Environ) -> bytes:
    content_length, limit = environ.get("CONTENT_LENGTH") or "", _limit(environ)
    too_large = TooLarge(f"A body may have at most {limit} bytes here")
    if not content_length:
        # Chunked: read one byte more than the limit, to see whether there is more.
        body: bytes = environ["wsgi.input"].read(limit + 1) if "HTTP_TRANSFER_ENCODING" in environ else b""
        if len(body) > limit:
            raise too_large
        return body
    if not content_length.isascii() or not content_length.isdigit():
        raise Malformed("Content-Length is not a number")
    length = int(content_length)
    if length > limit:
        raise too_large
    body = environ["wsgi.input"].read(length)
    if len(body) < length:
        raise Malformed(INCOMPLETE)
    return body


def _unpack(environ: Environ, body: bytes) -> bytes:
    match environ.get("HTTP_CONTENT_ENCODING", "identity").lower():
        case "identity" | "":
            return body
        case "gzip" | "x-gzip":
            return _gunzip(body, _limit(environ))
        case other:
            raise WrongType(f"Content-Encoding {other[:40]!r} is not accepted; send gzip or nothing")


def parse_json(body: bytes) -> Any:
    if not body.strip():
        raise Malformed("The body is empty; send JSON")
    containers = body.count(b"[") + body.count(b"{")
    if containers + body.count(b",") > MAX_VALUES:
        raise TooLarge(f"A body may have at most {MAX_VALUES} values")
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise Malformed(f"The body is not valid JSON: {error}") from None
    if containers > MAX_DEPTH and _is_deeper_than(value, MAX_DEPTH):
        raise Malformed(f"The body is nested deeper than {MAX_DEPTH} levels")
    if _NUL_ESCAPE in body and _has_nul(value):
        raise Invalid.field("body", "contains a NUL character", detail="Text may not contain the NUL character")
    return value


def _gunzip(packed: bytes, limit: int) -> bytes:
    unpacker = zlib.decompressobj(wbits=31)
    try:
        body = unpacker.decompress(packed, limit + 1)
    except zlib.error:
        raise Malformed("The body is not valid gzip") from None
    if len(body) > limit:
        raise TooLarge(f"A body may have at most {limit} bytes after unpacking")
    if not unpacker.eof:
        raise Malformed("The gzip body ended before it was complete")
    return body


def _is_deeper_than(value: Any, limit: int) -> bool:
    level = [value]
    for _ in range(limit):
        level = [inner for outer in level if isinstance(outer, dict | list) for inner in _children(outer)]
        if not level:
            return False
    return any(isinstance(value, dict | list) for value in level)


def _has_nul(value: Any) -> bool:
    pending = [value]
    while pending:
        current = pending.pop()
        if isinstance(current, str):
            if "\x00" in current:
                return True
        elif isinstance(current, dict):
            pending += current.keys()
            pending += current.values()
        elif isinstance(current, list):
            pending += current
    return False


def _children(container: dict[str, Any] | list[Any]) -> Any:
    return container.values() if isinstance(container, dict) else container
