"""plaudit.js as sites load it: without comments and indentation, compressed, for any origin."""

import gzip
import hashlib
from functools import cache
from importlib.resources import files

from flask import Response, request

from app.ui.assets import Asset, respond

# Modules, and tags with `integrity`, are loaded with CORS. `*` for everybody, so that a proxy may keep one answer.
HEADERS = {"Access-Control-Allow-Origin": "*", "Cross-Origin-Resource-Policy": "cross-origin"}
FOR_AN_HOUR = "public, max-age=3600"


def serve() -> Response:
    script = served_script()
    response = respond(script, cache_control=FOR_AN_HOUR)
    response.headers.update(HEADERS)
    # Weak: it names the script, compressed or not.
    response.set_etag(hashlib.blake2b(script.plain, digest_size=12).hexdigest(), weak=True)
    response.make_conditional(request.environ)
    return response


@cache
def served_script() -> Asset:
    source = files("app.ui").joinpath("static", "plaudit.js").read_text(encoding="utf-8")
    plain = strip_comments(source).encode()
    return Asset(plain, gzip.compress(plain, 9, mtime=0), "text/javascript; charset=utf-8")


def strip_comments(source: str) -> str:
    """The script without indentation, and without comments, which have lines of their own."""
    lines = (line.strip() for line in source.splitlines())
    return "\n".join(line for line in lines if line and not line.startswith("//"))
