"""Reading a request's body strictly, within limits.

JSON must be UTF-8 without NaN, lone surrogates or NUL characters, nested at most `MAX_DEPTH` deep, and at most
`MAX_BODY_BYTES` long, also after unpacking gzip. Whatever is wrong is a 4xx that says so.
"""

import zlib
from typing import Any

import orjson
from flask import Request, current_app, request
from werkzeug.exceptions import RequestEntityTooLarge

from tenants.errors import Invalid, Malformed, TooLarge, WrongType

MAX_BODY_BYTES = 1024 * 1024
MAX_DEPTH = 32
CUT_OFF = "The body ended before it was complete"
_NUL_ESCAPE = b"\\u0000"


def read_json(req: Request | None = None) -> Any:
    """The body of the current request, which must be JSON."""
    req = req or request
    if not req.is_json:
        raise WrongType("Send JSON with Content-Type: application/json")
    return parse_json(read_bytes(req))


def read_bytes(req: Request) -> bytes:
    """The whole body, unpacked if it came as gzip."""
    limit = req.max_content_length or current_app.config["MAX_CONTENT_LENGTH"] or MAX_BODY_BYTES
    try:
        body = req.get_data(cache=True)
    except RequestEntityTooLarge:
        raise TooLarge(f"A body may have at most {limit} bytes") from None
    except OSError:
        raise Malformed(CUT_OFF) from None
    if req.content_length is None:
        # Chunked: what is over the limit has not been read yet.
        if len(body) >= limit and req.environ["wsgi.input"].read(1):
            raise TooLarge(f"A body may have at most {limit} bytes")
    elif len(body) < req.content_length:
        raise Malformed(CUT_OFF)
    match req.headers.get("Content-Encoding", "identity").lower():
        case "identity":
            return body
        case "gzip" | "x-gzip":
            return _gunzip(body, limit)
        case other:
            raise WrongType(f"Content-Encoding {other[:40]!r} is not accepted; send gzip or nothing")


def parse_json(body: bytes) -> Any:
    if not body.strip():
        raise Malformed("The body is empty; send JSON")
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise Malformed(f"The body is not valid JSON: {error}") from None
    if body.count(b"[") + body.count(b"{") > MAX_DEPTH and _deeper_than(value, MAX_DEPTH):
        raise Malformed(f"The body is nested deeper than {MAX_DEPTH} levels")
    if _NUL_ESCAPE in body and _has_nul(value):
        raise Invalid("Text may not contain the NUL character", errors={"body": ["contains a NUL character"]})
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


def _deeper_than(value: Any, limit: int) -> bool:
    level = [value]
    for _ in range(limit):
        level = [inner for outer in level if isinstance(outer, dict | list) for inner in _inside(outer)]
        if not level:
            return False
    return any(isinstance(value, dict | list) for value in level)


def _has_nul(value: Any) -> bool:
    waiting = [value]
    while waiting:
        current = waiting.pop()
        if isinstance(current, str):
            if "\x00" in current:
                return True
        elif isinstance(current, dict):
            waiting += current.keys()
            waiting += current.values()
        elif isinstance(current, list):
            waiting += current
    return False


def _inside(container: dict[str, Any] | list[Any]) -> Any:
    return container.values() if isinstance(container, dict) else container
