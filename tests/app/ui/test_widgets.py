"""What is shown on other people's pages: public pages only, harmless whatever they are called, and cacheable."""

import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import pytest
from flask.testing import FlaskClient
from sqlalchemy import text

from analytics import outbox
from analytics.boards import projection, recomputing
from analytics.ingest import pages
from tenants.db import owner_tx, tenant_tx, utcnow
from tests.people import Caller, client_of

NASTY = {
    "script": '<script>alert("x")</script>',
    "attribute": '" onmouseover="alert(1)" x="',
    "entity": "&lt;b&gt; & <![CDATA[x]]> ]]>",
    "rtl": "\u202egnp.exe \u2067\u05e2\u05d1\u05e8\u05d9\u05ea\u2069",
    "long": "endless" * 60,
    "formula": "=HYPERLINK(0)",
}


class Tags(HTMLParser):
    """The tags of a page, and its texts."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def links(self) -> list[str | None]:
        return [attributes.get("href") for tag, attributes in self.tags if tag == "a"]


@pytest.fixture
def wiki(client: FlaskClient, tenant: str) -> Caller:
    return client_of(client, tenant)


@pytest.fixture
def key(wiki: Caller) -> str:
    return str(wiki("POST", "/api/v1/keys", json={"origins": ["https://wiki.example"]}).get_json()["key"])


def put(wiki: Caller, name: str, *, title: str = "A page", visibility: str = "public", space: str = "docs") -> None:
    body = {"space": space, "title": title, "url": f"https://wiki.example/{name}", "visibility": visibility}
    assert wiki("PUT", f"/api/v1/pages/{name}", json=body).status_code == 201
    wiki("PUT", f"/api/v1/pages/{name}/likes/ann")
    projection.project_all(wiki.tenant, now=utcnow)


def test_the_list_shows_public_pages_of_the_space_and_may_be_framed_by_the_keys_origins(
    client: FlaskClient, wiki: Caller, key: str
) -> None:
    put(wiki, "open", title="Open page")
    put(wiki, "closed", title="Closed page", visibility="private")
    put(wiki, "elsewhere", title="Elsewhere", space="other")
    answer = client.get(f"/embed/popular?key={key}&space=docs&window=7d&metric=likes")
    shown = Tags(answer.text)
    assert shown.links() == ["https://wiki.example/open"]
    assert "Open page" in shown.text
    assert "Closed" not in answer.text
    assert "Elsewhere" not in answer.text
    assert answer.headers["Cache-Control"].startswith("public, max-age=60")
    policy = answer.headers["Content-Security-Policy"]
    assert "frame-ancestors https://wiki.example" in policy
    assert "default-src 'none'" in policy
    again = client.get(
        answer.request.path + "?" + answer.request.query_string.decode(),
        headers={"If-None-Match": answer.headers["ETag"]},
    )
    assert again.status_code == 304


def test_an_empty_list_says_so(client: FlaskClient, key: str) -> None:
    assert "Nothing yet" in client.get(f"/embed/popular?key={key}").text


@pytest.mark.parametrize("name", NASTY)
def test_titles_are_escaped_everywhere(client: FlaskClient, wiki: Caller, key: str, name: str) -> None:
    put(wiki, "p", title=NASTY[name])
    shown = Tags(client.get(f"/embed/popular?key={key}&title={NASTY['script']}").text)
    assert NASTY[name] in shown.text
    assert [tag for tag, _ in shown.tags].count("script") == 1
    assert all("onmouseover" not in attributes for _, attributes in shown.tags)
    picture = client.get(f"/embed/badge/p.svg?key={key}&label={NASTY['attribute'].replace(' ', '%20')}")
    root = ET.fromstring(picture.text)  # noqa: S314  our own
    assert {element.tag.rpartition("}")[2] for element in root.iter()} <= {
        "svg",
        "title",
        "clipPath",
        "g",
        "rect",
        "text",
    }
    assert all(not attribute.startswith("on") for element in root.iter() for attribute in element.attrib)
    title = root.find("{http://www.w3.org/2000/svg}title")
    assert title is not None
    assert title.text == f"{NASTY[name]}: 0 views"
    assert picture.headers["Content-Security-Policy"].endswith("sandbox")


@pytest.mark.parametrize(
    "url",
    [
        *("javascript:alert(1)", "JavaScript:alert(1)", "data:text/html,x", "//evil.example", "/\\evil.example"),
        *("https://wiki.example\\@evil.example", "/a\\..\\..\\evil", "/\t/evil.example", "\x01//evil.example"),
    ],
)
def test_only_http_addresses_are_links(client: FlaskClient, wiki: Caller, key: str, url: str) -> None:
    put(wiki, "p")
    with owner_tx() as tx:  # the API would not take it
        tx.execute(text("UPDATE pages SET url = :url WHERE tenant_id = :t"), {"url": url, "t": wiki.tenant})
    with tenant_tx(wiki.tenant) as tx:
        outbox.mark_stale(tx, outbox.Kind.PAGE, [pages.get(tx, "p").id])
    recomputing.recompute_tenant(wiki.tenant, now=utcnow, progress=lambda _: None)
    answer = client.get(f"/embed/popular?key={key}&base=https://wiki.example")
    assert Tags(answer.text).links() == []


def test_relative_links_are_resolved_against_the_embedding_page(client: FlaskClient, wiki: Caller, key: str) -> None:
    wiki("PUT", "/api/v1/pages/r", json={"space": "docs", "title": "R", "url": "/r", "visibility": "public"})
    wiki("PUT", "/api/v1/pages/r/likes/ann")
    projection.project_all(wiki.tenant, now=utcnow)
    assert Tags(client.get(f"/embed/popular?key={key}&base=https://wiki.example").text).links() == [
        "https://wiki.example/r"
    ]
    assert Tags(client.get(f"/embed/popular?key={key}").text).links() == []
    assert client.get(f"/embed/popular?key={key}&base=https://evil.example").status_code == 422


def test_the_badge_counts_public_pages_and_hides_whether_others_exist(
    client: FlaskClient, wiki: Caller, key: str
) -> None:
    put(wiki, "open")
    put(wiki, "closed", visibility="private")
    shown = client.get(f"/embed/badge/open.svg?key={key}&metric=likes&window=7d")
    assert (shown.status_code, shown.content_type) == (200, "image/svg+xml; charset=utf-8")
    assert "likes, 7 days" in shown.text
    assert ">1</text>" in shown.text
    assert shown.headers["Cache-Control"].startswith("public")
    closed, missing = (client.get(f"/embed/badge/{name}.svg?key={key}") for name in ("closed", "nosuch"))
    assert (closed.status_code, missing.status_code) == (404, 404)
    assert closed.text.replace("closed", "nosuch") == missing.text
    assert closed.content_type.startswith("image/svg+xml")


def test_another_tenants_key_shows_nothing_of_this_one(client: FlaskClient, wiki: Caller, other_tenant: str) -> None:
    put(wiki, "open", title="Secret of one")
    other = client_of(client, other_tenant)
    theirs = other("POST", "/api/v1/keys", json={"origins": ["https://other.example"]}).get_json()["key"]
    assert "Secret" not in client.get(f"/embed/popular?key={theirs}").text
    assert client.get(f"/embed/badge/open.svg?key={theirs}").status_code == 404


def test_only_the_key_in_the_address_is_used_since_caches_key_by_it(
    client: FlaskClient, wiki: Caller, key: str, other_tenant: str
) -> None:
    put(wiki, "open", title="Open page")
    theirs = client_of(client, other_tenant)("POST", "/api/v1/keys", json={"origins": ["https://o.example"]}).get_json()
    answer = client.get(f"/embed/popular?key={key}", headers={"X-Plaudit-Key": theirs["key"]})
    assert "Open page" in answer.text
    assert client.get("/embed/popular", headers={"X-Plaudit-Key": key}).status_code == 401


@pytest.mark.parametrize("path", ["/embed/popular", "/embed/badge/x.svg"])
@pytest.mark.parametrize(
    "query", ["", "key=pk_nobody_xxxxxxxxxxxx", "key=KEY&window=2d", "key=KEY&metric=points", "key=KEY&nonsense=1"]
)
def test_an_error_has_the_content_type_of_the_widget(client: FlaskClient, key: str, path: str, query: str) -> None:
    answer = client.get(f"{path}?{query.replace('KEY', key)}")
    assert answer.status_code in {401, 422}
    assert answer.headers["Cache-Control"] == "no-store"
    expected = "image/svg+xml" if path.endswith("svg") else "text/html"
    assert answer.content_type.startswith(expected)


def test_the_script_may_be_cached(client: FlaskClient) -> None:
    answer = client.get("/embed/popular.js")
    assert answer.content_type.startswith("text/javascript")
    assert "max-age" in answer.headers["Cache-Control"]
