"""Files of pages: what is read from them, and which are refused."""

import gzip
from pathlib import Path

import pytest

from analytics.ingest import page_files, page_writes
from analytics.ingest.addresses import Address
from analytics.ingest.page_files import MAX_DEPTH, Defaults, derived_id, derived_title
from analytics.ingest.page_writes import PageWrite
from tenants.errors import Invalid

DEFAULTS = Defaults("docs", None)
NAMESPACES = (
    'xmlns="http://www.sitemaps.org/schemas/sitemap/0.9" xmlns:image="http://www.google.com/schemas/sitemap-image/1.1"'
)


def urlset(*paths: str) -> str:
    return f"<urlset>{''.join(f'<url><loc>https://w.example/{path}</loc></url>' for path in paths)}</urlset>"


def index_of(*names: str) -> str:
    sitemaps = "".join(f"<sitemap><loc>https://w.example/maps/{name}</loc></sitemap>" for name in names)
    return f"<sitemapindex {NAMESPACES}>{sitemaps}</sitemapindex>"


def read(file: Path, defaults: Defaults = DEFAULTS) -> list[tuple[int, str]]:
    """For each entry its line, and its id or what is wrong with it."""
    return [
        (entry.line, entry.page.external_id if isinstance(entry.page, PageWrite) else f"! {entry.page.detail}")
        for entry in page_files.read(file, defaults)
    ]


def test_a_sitemap_is_read_with_its_lines_also_as_gzip_and_also_an_index_of_files_beside_it(tmp_path: Path) -> None:
    one, two, index = tmp_path / "one.xml", tmp_path / "two.xml.gz", tmp_path / "sitemap.xml"
    one.write_text(
        f"""<?xml version="1.0" encoding="UTF-8"?>
        <urlset {NAMESPACES}>
          <url><loc> https://w.example/?a=1&amp;b=2 </loc><lastmod>2026-01-01</lastmod>
            <image:image><image:loc>https://w.example/picture.png</image:loc></image:image></url>
          <url><loc>https://w.example/docs/intro/</loc></url>
          <url><loc>ftp://w.example/x</loc></url><url><loc>http://www.w.example/docs/intro</loc></url>
        </urlset>"""
    )
    two.write_bytes(gzip.compress(b"\xef\xbb\xbf" + urlset("z").encode("utf-8")))
    index.write_text(index_of("one.xml", "two.xml.gz?v=1"))
    in_one = [
        (3, read(one)[0][1]),
        (5, "docs:intro"),
        (6, "! url: an http or https address"),
        (6, "! external_id: 'docs:intro' is in one.xml, line 5 too"),
    ]
    assert read(one) == in_one
    assert in_one[0][1].startswith("~-"), "an address with a query is not the root"
    assert read(index) == [*in_one, (1, "z")]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('<!DOCTYPE x [<!ENTITY e SYSTEM "/etc/hosts">]><urlset><url><loc>&e;</loc></url></urlset>', "document type"),
        ('<!DOCTYPE x [<!ENTITY a "b">]><urlset/>', "line 1: a document type"),
        ("<urlset>\n<url><loc>https://w.example/</loc>", "line 2: no element found"),
        ("<urlset>\n<url></loc></url></urlset>", "line 2: mismatched tag"),
        ("<urlset><url><loc>&nbsp;</loc></url></urlset>", "undefined entity"),
        ("<html><body/></html>", "no sitemap: <html>"),
        ("<a>" * 2, "no sitemap"),
        ("<urlset>" + "<a>" * MAX_DEPTH, f"more than {MAX_DEPTH} elements"),
        (urlset("x" * 10_000), "too long"),
        ('<?xml version="1.0" encoding="klingon"?><urlset/>', "line 1"),
        (
            "<sitemapindex><sitemap><loc>https://w.example/gone.xml</loc></sitemap></sitemapindex>",
            "no 'gone.xml' beside",
        ),
        ("<sitemapindex><sitemap><loc>https://w.example/..%2Fx</loc></sitemap></sitemapindex>", "names no file"),
        (
            "<sitemapindex><sitemap><loc>https://w.example/f</loc></sitemap></sitemapindex>",
            "an index inside of an index",
        ),
        ("", "line 1: the header of a CSV file is external_id,space,title,url"),
        ("external_id,title\n", "no url"),
        ("external_id,title,url,colour\n", "colour is one too many"),
        ('external_id,title,url\na,b,"c\n', "line 2: unexpected end"),
        (b"external_id,title,url\na,\xff,/c\n", "line 2: not UTF-8"),
        (b"\x1f\x8bno gzip", "cannot be read"),
        (gzip.compress(urlset("x").encode(), mtime=0)[:-9], "cannot be read"),
    ],
)
def test_a_file_that_cannot_be_read_to_its_end_is_refused_by_its_line(
    content: str | bytes, said: str, tmp_path: Path
) -> None:
    file = tmp_path / "f"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(Invalid) as refused:
        read(file)
    assert str(file) in refused.value.detail
    assert said in refused.value.detail


def test_a_file_that_unpacks_to_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_files, "MAX_FILE_BYTES", 100_000)
    (tmp_path / "f").write_bytes(gzip.compress(b"<urlset>" + b" " * 200_000 + b"</urlset>"))
    with pytest.raises(Invalid, match="has more than"):
        read(tmp_path / "f")


def test_csv_is_read_with_quotes_defaults_and_a_reason_for_each_bad_line(tmp_path: Path) -> None:
    file = tmp_path / "pages.csv"
    file.write_bytes(
        b"\xef\xbb\xbfurl, external_id,title,space\r\n"
        b'/a,a,"Two\n words",eng\r\n'
        b'/b,b,"Said ""b"", twice",\r\n'
        b"\r\n"
        b"/c,c\r\n"
        b"/d,d e,T,eng\r\n"
        b"/b,b,T,eng\n"
    )
    entries = list(page_files.read(file, Defaults("docs", "public")))
    assert entries[1].page == PageWrite("b", "docs", 'Said "b", twice', "/b", visibility="public")
    assert [(line, said[:25]) for line, said in read(file)] == [
        (3, "! title: 1 to 500 charact"),  # a line break
        (4, "b"),
        (6, "! 2 values, of 4 in the h"),
        (7, "! external_id: 1 to 128 o"),
        (8, "! external_id: 'b' is in "),
    ]
    sitemap = tmp_path / "sitemap.xml"
    sitemap.write_text(urlset("x"))
    with pytest.raises(Invalid, match="--space"):
        read(sitemap, Defaults(None, None))


@pytest.mark.parametrize(
    ("url", "external_id", "title"),
    [
        ("https://w.example", "~", "w.example"),
        ("https://w.example/docs/getting-started/", "docs:getting-started", "Getting started"),
        ("https://w.example/2026/hello_world.html", "2026:hello_world.html", "Hello world"),
        ("https://w.example/v1.2", "v1.2", "V1.2"),
        ("https://w.example/caf%C3%A9", "caf--", "Café"),
        ("https://w.example/show?id=5", "show-", "Show"),
        ("https://w.example/a%2Fb", "a:b-", "B"),
        ("https://w.example/" + "x" * 300, "x" * 100 + "-", "X" + "x" * 299),
        ("https://w.example/app#/inbox", "app-", "App"),
        ("https://w.example/%00", "--", "w.example"),
    ],
)
def test_an_id_and_a_title_are_derived_from_an_address(url: str, external_id: str, title: str) -> None:
    address = Address.parse(url)
    assert address is not None
    derived = derived_id(address)
    assert derived == external_id or (external_id.endswith("-") and derived[:-12] == external_id)
    assert derived_title(address) == title
    page_writes.check(PageWrite(derived, "s", title, url))
    longer = Address.parse(url + ("&" if "?" in url else "?") + "page=2")
    assert longer is not None
    assert derived_id(longer) != derived
