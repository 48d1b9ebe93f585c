"""Files of pages: a sitemap (also gzipped, also an index of sitemaps that lie beside it), or CSV.

A sitemap has addresses only, so a page's id is derived from its path and its title from the last part of it. Anybody
may have written a sitemap: it is read in pieces, with bounds, and with no document type, which is where entities and
other files would be named.
"""

import csv
import gzip
import hashlib
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import IO, cast
from urllib.parse import unquote, urlsplit
from xml.parsers import expat

from analytics.ingest import page_writes, pages
from analytics.ingest.addresses import Address
from analytics.ingest.page_writes import PageWrite, Written
from analytics.ingest.pages import MAX_TITLE_CHARS, MAX_URL_BYTES
from tenants.db import Tx
from tenants.errors import DomainError, Invalid

REQUIRED_COLUMNS = ("external_id", "space", "title", "url")
OPTIONAL_COLUMNS = ("visibility", "owner")
MAX_FILE_BYTES = 200 * 1024 * 1024
MAX_SITEMAPS = 1_000
MAX_DEPTH = 16
# In an id that is derived from a path: at most so many characters of the path.
MAX_DERIVED_CHARS = 100
CHUNK_BYTES = 64 * 1024
MAX_FILE_NAME_BYTES = 255
# The id of a site's root, whose path has no name.
ROOT_ID = "~"
FILE_ENDINGS = frozenset({"html", "htm", "php", "asp", "aspx", "md"})

_GZIP = b"\x1f\x8b"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_NOT_IN_IDS = re.compile(r"[^A-Za-z0-9._~:@-]")
_SEPARATORS = re.compile(r"[-_+\s]+")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True)
class Defaults:
    """What a page has whose entry does not say it."""

    space: str | None
    visibility: str | None


@dataclass(frozen=True)
class Entry:
    """A page of a file, or why its line is none."""

    file: str
    line: int
    page: PageWrite | Invalid
    # Whether title and space were derived, from the address and the default: a page that exists keeps its own.
    is_derived: bool = False


def read(file: Path, defaults: Defaults) -> Iterator[Entry]:
    """The pages of a file, in its order. Raises Invalid for a file that cannot be read to its end."""
    with _open(file) as stream:
        start = stream.read(CHUNK_BYTES).removeprefix(_BYTE_ORDER_MARK).lstrip()
    if start.startswith(b"<") or start[:2] in {b"\xff\xfe", b"\xfe\xff"}:
        entries = _read_sitemap(file, defaults)
    else:
        entries = _read_csv(file, defaults)
    return _each_once(entries)


def write(tx: Tx, entries: Sequence[Entry], *, now: datetime) -> list[Written | DomainError]:
    """Write the pages of some entries, each as `PUT` does. For each entry what became of it."""
    writes = {place: entry.page for place, entry in enumerate(entries) if isinstance(entry.page, PageWrite)}
    derived = {place: page.external_id for place, page in writes.items() if entries[place].is_derived}
    known = pages.titles_and_spaces(tx, list(derived.values()))
    for place, external_id in derived.items():
        if external_id in known:
            title, space = known[external_id]
            writes[place] = replace(writes[place], title=title, space=space)
    outcomes = dict(zip(writes, page_writes.put_all(tx, list(writes.values()), now=now), strict=True))
    return [entry.page if isinstance(entry.page, Invalid) else outcomes[place] for place, entry in enumerate(entries)]


def _each_once(entries: Iterator[Entry]) -> Iterator[Entry]:
    seen: dict[str, Entry] = {}
    for entry in entries:
        if isinstance(entry.page, PageWrite):
            first = seen.setdefault(entry.page.external_id, entry)
            if first is not entry:
                twice = f"{entry.page.external_id!r} is in {first.file}, line {first.line} too"
                yield replace(entry, page=Invalid.field("external_id", twice))
                continue
        yield entry


@contextmanager
def _open(file: Path) -> Iterator[IO[bytes]]:
    """The bytes of a file, unpacked if it is gzip."""
    try:
        with file.open("rb") as packed:
            is_gzip = packed.read(2) == _GZIP
            packed.seek(0)
            yield cast("IO[bytes]", gzip.GzipFile(fileobj=packed) if is_gzip else packed)
    except (OSError, EOFError, zlib.error) as error:
        raise Invalid(f"{file} cannot be read: {error}") from None


def _chunks(file: Path) -> Iterator[bytes]:
    read_bytes = 0
    with _open(file) as stream:
        while chunk := stream.read(CHUNK_BYTES):
            read_bytes += len(chunk)
            if read_bytes > MAX_FILE_BYTES:
                raise Invalid(f"{file} has more than {MAX_FILE_BYTES // 1024 // 1024} MiB: split it")
            yield chunk


def _read_csv(file: Path, defaults: Defaults) -> Iterator[Entry]:
    rows = csv.reader(_lines(file), strict=True)
    try:
        header = [name.strip() for name in next(rows, [])]
        _check_header(file, header, defaults)
        for row in rows:
            if row:
                yield Entry(file.name, rows.line_num, _csv_page(header, row, defaults))
    except csv.Error as error:
        raise Invalid(f"{file}, line {rows.line_num}: {error}") from None


def _lines(file: Path) -> Iterator[str]:
    """Lines of text with their ends, as the csv module wants them."""
    rest, number = b"", 0
    for chunk in _chunks(file):
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            number += 1
            yield _decoded(file, number, line + b"\n")
        if len(rest) > csv.field_size_limit():
            raise Invalid(f"{file}, line {number + 1}: too long")
    if rest:
        yield _decoded(file, number + 1, rest)


def _decoded(file: Path, number: int, line: bytes) -> str:
    try:
        return (line.removeprefix(_BYTE_ORDER_MARK) if number == 1 else line).decode()
    except UnicodeDecodeError:
        raise Invalid(f"{file}, line {number}: not UTF-8") from None


def _check_header(file: Path, header: list[str], defaults: Defaults) -> None:
    required = [name for name in REQUIRED_COLUMNS if name != "space" or defaults.space is None]
    missing = [name for name in required if name not in header]
    unknown = [name for name in header if name not in {*REQUIRED_COLUMNS, *OPTIONAL_COLUMNS}]
    if missing or unknown or len({*header}) < len(header):
        wanted = f"{','.join(REQUIRED_COLUMNS)}[,{','.join(OPTIONAL_COLUMNS)}]"
        wrong = f"no {', '.join(missing)}" if missing else f"{', '.join(unknown)[:100] or 'a name'} is one too many"
        raise Invalid(f"{file}, line 1: the header of a CSV file is {wanted}; here is {wrong}")


def _csv_page(header: list[str], row: list[str], defaults: Defaults) -> PageWrite | Invalid:
    if len(row) != len(header):
        return Invalid(f"{len(row)} values, of {len(header)} in the header")
    values = {name: value.strip() for name, value in zip(header, row, strict=True)}
    return _checked(
        PageWrite(
            external_id=values["external_id"],
            space=values.get("space") or defaults.space or "",
            title=values["title"],
            url=values["url"],
            visibility=values.get("visibility") or defaults.visibility,
            owner=values.get("owner") or None,
        )
    )


def _checked(page: PageWrite) -> PageWrite | Invalid:
    try:
        page_writes.check(page)
    except Invalid as error:
        return error
    return page


def _read_sitemap(file: Path, defaults: Defaults) -> Iterator[Entry]:
    if defaults.space is None:
        raise Invalid("A sitemap does not say which space its pages are in: use --space")
    sitemaps: list[Path] = []
    for root, line, url in _locations(file):
        if root == "urlset":
            yield _sitemap_entry(file, line, url, defaults)
        elif len(sitemaps) < MAX_SITEMAPS:
            sitemaps.append(_beside(file, line, url))
        else:
            raise Invalid(f"{file}, line {line}: more than {MAX_SITEMAPS} sitemaps")
    for sitemap in sitemaps:
        for root, line, url in _locations(sitemap):
            if root != "urlset":
                raise Invalid(f"{sitemap}: an index inside of an index")
            yield _sitemap_entry(sitemap, line, url, defaults)


def _beside(index: Path, line: int, url: str) -> Path:
    """The sitemap that an index names by its address: the file of that name in the folder of the index."""
    name = unquote(_path_of(url).rpartition("/")[2])
    if not name or Path(name).name != name or "\0" in name or len(name.encode()) > MAX_FILE_NAME_BYTES:
        raise Invalid(f"{index}, line {line}: {url[:200]!r} names no file")
    sitemap = index.with_name(name)
    if not sitemap.is_file():
        raise Invalid(f"{index}, line {line}: there is no {name!r} beside it, download it first")
    return sitemap


def _path_of(url: str) -> str:
    try:
        return urlsplit(url).path
    except ValueError:
        return ""


def _locations(file: Path) -> Iterator[tuple[str, int, str]]:
    """Each `<loc>` of a sitemap or an index, with the name of the root element and its line."""
    reader = _SitemapReader(file)
    for chunk in _chunks(file):
        yield from reader.feed(chunk)
    yield from reader.feed(b"", is_last=True)


class _SitemapReader:
    """Reads `<urlset><url><loc>…` and `<sitemapindex><sitemap><loc>…`, piece by piece."""

    ROOTS = ("urlset", "sitemapindex")

    def __init__(self, file: Path) -> None:
        self._file = file
        self._open: list[str] = []
        # Of the `<loc>` that is open: its text so far, how long that is, and the line where it began.
        self._text: list[str] | None = None
        self._chars = 0
        self._line = 0
        self._found: list[tuple[str, int, str]] = []
        self._parser = expat.ParserCreate(namespace_separator=" ")
        self._parser.StartDoctypeDeclHandler = self._refuse_doctype
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end
        self._parser.CharacterDataHandler = self._add

    def feed(self, chunk: bytes, *, is_last: bool = False) -> list[tuple[str, int, str]]:
        try:
            self._parser.Parse(chunk, is_last)
        except expat.ExpatError as error:
            raise Invalid(f"{self._file}, line {error.lineno}: {expat.ErrorString(error.code)}") from None
        except (LookupError, ValueError) as error:  # an encoding that there is not, or that is not supported
            raise self._wrong(str(error)) from None
        found, self._found = self._found, []
        return found

    def _wrong(self, message: str) -> Invalid:
        return Invalid(f"{self._file}, line {self._parser.CurrentLineNumber}: {message}")

    def _refuse_doctype(self, *_: object) -> None:
        raise self._wrong("a document type is not accepted")

    def _start(self, name: str, _attributes: object) -> None:
        self._open.append(name.rpartition(" ")[2])
        if len(self._open) == 1 and self._open[0] not in self.ROOTS:
            raise self._wrong(f"this is no sitemap: <{self._open[0][:100]}>")
        if len(self._open) > MAX_DEPTH:
            raise self._wrong(f"more than {MAX_DEPTH} elements inside of each other")
        if self._open[1:] in (["url", "loc"], ["sitemap", "loc"]):
            self._text, self._chars, self._line = [], 0, self._parser.CurrentLineNumber

    def _add(self, text: str) -> None:
        if self._text is not None:
            self._text.append(text)
            self._chars += len(text)
            if self._chars > 4 * MAX_URL_BYTES:
                raise self._wrong("an address that is too long")

    def _end(self, _name: str) -> None:
        self._open.pop()
        if self._text is not None:
            self._found.append((self._open[0], self._line, "".join(self._text).strip()))
            self._text = None


def _sitemap_entry(file: Path, line: int, url: str, defaults: Defaults) -> Entry:
    address = Address.parse(url)
    if address is None or address.is_path:
        wrong = Invalid.field("url", "an http or https address")
        return Entry(file.name, line, wrong)
    page = PageWrite(
        external_id=derived_id(address),
        space=defaults.space or "",
        title=derived_title(address),
        url=url,
        visibility=defaults.visibility,
    )
    return Entry(file.name, line, _checked(page), is_derived=True)


def derived_id(address: Address) -> str:
    """An id from the address's path, such as `docs:intro`. What an id cannot have is replaced, and a hash added."""
    path = unquote(address.path).strip("/")
    readable = _NOT_IN_IDS.sub("-", path.replace("/", ":"))[:MAX_DERIVED_CHARS]
    if readable.replace(":", "/") == address.path.strip("/") and not address.query and not address.fragment:
        return readable or ROOT_ID
    digest = hashlib.sha256(address.as_path().text.encode()).hexdigest()[:12]
    return f"{readable or ROOT_ID}-{digest}"


def derived_title(address: Address) -> str:
    """The last part of the path as words, such as `Getting started`; the host's name for a root."""
    last = unquote(address.path).rstrip("/").rpartition("/")[2]
    stem, dot, ending = last.rpartition(".")
    words = _SEPARATORS.sub(" ", _CONTROL.sub(" ", stem if dot and ending in FILE_ENDINGS else last))
    words = words.strip()[:MAX_TITLE_CHARS]
    return (words[:1].upper() + words[1:]) or address.host[:MAX_TITLE_CHARS]
