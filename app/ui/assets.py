"""The files that our pages load: read and compressed once, at addresses that change with their contents."""

import gzip
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

from flask import Blueprint, Response, request

from app.http.edge import quiet
from app.http.rights import public
from tenants.errors import NotFound

blueprint = Blueprint("assets", __name__)

TYPES = {"js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
FOR_EVER = "public, max-age=31536000, immutable"


@dataclass(frozen=True)
class Asset:
    plain: bytes
    zipped: bytes
    content_type: str


@dataclass(frozen=True)
class Assets:
    files: dict[str, Asset]
    version: str

    def scripts(self, folder: str) -> list[str]:
        return [name for name in self.files if name.startswith(f"{folder}/") and name.endswith(".js")]


@blueprint.get("/assets/<version>/<path:name>")
@quiet
@public
def asset(version: str, name: str) -> Response:
    return serve(name, cache_control=FOR_EVER if version == assets().version else "no-cache")


def serve(name: str, *, cache_control: str) -> Response:
    file = assets().files.get(name)
    if file is None:
        raise NotFound
    return respond(file, cache_control=cache_control)


def respond(file: Asset, *, cache_control: str) -> Response:
    zipped = request.accept_encodings.quality("gzip") > 0
    response = Response(file.zipped if zipped else file.plain, content_type=file.content_type)
    response.headers["Vary"] = "Accept-Encoding"
    response.headers["Cache-Control"] = cache_control
    if zipped:
        response.headers["Content-Encoding"] = "gzip"
    return response


@cache
def assets() -> Assets:
    digest, loaded = hashlib.blake2b(digest_size=8), {}
    for name, file in _walk(files("app.ui").joinpath("static", "assets")):
        plain, kind = file.read_bytes(), TYPES[name.rpartition(".")[2]]
        loaded[name] = Asset(plain, gzip.compress(plain, 9, mtime=0), f"{kind}; charset=utf-8")
        digest.update(name.encode() + b"\0" + plain)
    return Assets(loaded, digest.hexdigest())


def _walk(folder: Traversable, prefix: str = "") -> Iterator[tuple[str, Traversable]]:
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.is_dir():
            yield from _walk(entry, f"{prefix}{entry.name}/")
        elif entry.name.rpartition(".")[2] in TYPES:
            yield f"{prefix}{entry.name}", entry
