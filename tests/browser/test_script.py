"""`plaudit.js` on a page, in a real browser: one view per navigation, none for those who do not want to be counted."""

import base64
import hashlib
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext

from tests.browser.counted import AGENT, LONGEST_WAIT_MS, CountedSite, Reader
from tests.browser.site import Site
from tests.service import Service, eventually

SIGNED = 'data-user="ada" data-signature="1.ab"'
# What a browser says before the page's scripts run.
BEFORE = {
    "dnt": "Object.defineProperty(navigator, 'doNotTrack', { get: () => '1' })",
    "gpc": "Object.defineProperty(navigator, 'globalPrivacyControl', { get: () => true })",
    "prerendered": "Object.defineProperty(document, 'prerendering', { value: true, configurable: true })",
}
BY_ADA = {"user": "ada", "user_signature": "1.ab"}


@pytest.fixture(scope="module")
def service(demo_service: Service) -> Service:
    return demo_service


@pytest.fixture(scope="module")
def wiki(service: Service) -> Iterator[CountedSite]:
    with Site() as site:
        yield CountedSite(service, site)


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    context = browser.new_context(user_agent=AGENT)
    yield context
    context.close()


@pytest.fixture(scope="module")
def silent(wiki: CountedSite, browser: Browser) -> Iterator[dict[str, Reader]]:
    """Pages that were open for long, and send nothing by themselves."""
    context = browser.new_context(user_agent=AGENT)
    attributes = {"manual": "data-manual", "dnt": 'data-page="b-dnt"', "gpc": 'data-page="b-gpc"', "prerendered": ""}
    readers = {}
    for name in (*attributes, "keyless"):
        wiki.put(f"/{name}", attributes=f"{attributes.get(name, '')} {SIGNED}")
        readers[name] = Reader(context.new_page())
        readers[name].page.add_init_script(BEFORE.get(name, ""))
    wiki.site.pages["/keyless"] = wiki.site.pages["/keyless"].replace("data-key", "data-kee")
    for name, reader in readers.items():
        reader.page.goto(f"{wiki.origin}/{name}")
    readers["manual"].run("history.pushState({}, '', '/manual/2')")
    readers["manual"].run("dispatchEvent(new PageTransitionEvent('pageshow', { persisted: true }))")
    readers["manual"].page.wait_for_timeout(LONGEST_WAIT_MS)
    assert {name: reader.sent for name, reader in readers.items()} == {name: [] for name in readers}
    yield readers
    context.close()


def test_one_view_per_navigation(wiki: CountedSite, context: BrowserContext) -> None:
    one, two, three = ({"url": f"{wiki.origin}/{name}", "title": f"/{name}"} for name in ("one", "two", "three"))
    pages = [wiki.put(path, head=f'<link rel="canonical" href="{path}">') for path in ("/one", "/three")]
    pages.append(wiki.register("/two"))
    reader = Reader(context.new_page())
    reader.page.goto(f"{wiki.origin}/one#part")
    reader.has_sent(1)
    reader.run("history.replaceState({}, '', '/one?tidied=1')")
    reader.run("document.title = '/two'; history.pushState({}, '', '/two')")
    reader.has_sent(2)
    reader.run("history.pushState({}, '', '/two#part')")
    reader.run("location = '/three?utm_source=x'")
    reader.has_sent(3)
    reader.run("dispatchEvent(new PageTransitionEvent('pageshow', { persisted: true }))")
    reader.has_sent(4)
    reader.page.wait_for_timeout(LONGEST_WAIT_MS)
    tagged = three | {"url": three["url"] + "?utm_source=x", "canonical": three["url"]}
    assert reader.sent == [one, two, tagged | {"referrer": f"{wiki.origin}/two"}, tagged]
    assert reader.warnings == []
    assert context.cookies() == []
    eventually(lambda: [wiki.views().get(page) for page in pages] == [1, 1, 1])


def test_ids_name_pages_at_their_own_address_and_are_counted(wiki: CountedSite, context: BrowserContext) -> None:
    attribute = wiki.put("/attribute", attributes='data-page="b-attribute"')
    meta = wiki.put("/meta", head='<meta name="plaudit-page" content="b-meta">')
    readers = [Reader(context.new_page()) for _ in range(2)]
    for reader, path in zip(readers, ("/attribute", "/meta"), strict=True):
        reader.page.goto(wiki.origin + path)
        reader.has_sent(1)
        reader.run("history.replaceState({}, '', '?tidied')")
        reader.run("history.pushState({}, '', '/elsewhere')")
    for reader in readers:
        reader.has_sent(2)
        reader.run("history.back()")
    for reader, page in zip(readers, (attribute, meta), strict=True):
        reader.has_sent(3)
        assert [sent.get("page") for sent in reader.sent] == [page, None, page]
        # Nor does the title that was there before.
        assert reader.sent[1] == {"url": f"{wiki.origin}/elsewhere"}
    eventually(lambda: wiki.views().get(attribute) == 1 and wiki.views().get(meta) == 1)


def test_an_empty_meta_is_waited_for_a_second(wiki: CountedSite, context: BrowserContext) -> None:
    fill = "setTimeout(() => document.querySelector('meta').content = '%s', %d)"
    filled = f"<script>addEventListener('load', () => {fill % ('b-late', 400)})</script>"
    noted = "<script>navigator.sendBeacon = () => { window.sentAt = performance.now() }</script>"
    first, moved, never = readers = [Reader(context.new_page()) for _ in range(3)]
    for reader, path, script in zip(readers, ("/late", "/moved", "/never"), (filled, "", noted), strict=True):
        wiki.put(path, head=f'<meta name="plaudit-page" content="">{script}')
        reader.page.goto(wiki.origin + path)
    # What waits is sent at once when the reader looks elsewhere.
    moved.run("document.dispatchEvent(new Event('visibilitychange'))")
    moved.run("history.pushState({}, '', '/moved/2'); setTimeout(() => document.title = '2', 50)")
    moved.run(fill % ("b-moved-2", 500))
    for reader, views in ((first, 1), (moved, 2), (never, 1)):
        reader.has_sent(views)
    assert first.sent == [{"page": "b-late"}]
    assert moved.sent == [{"url": f"{wiki.origin}/moved", "title": "/moved"}, {"page": "b-moved-2"}]
    assert never.sent == [{"url": f"{wiki.origin}/never", "title": "/never"}]
    waited_ms = "sentAt - performance.getEntriesByType('navigation')[0].loadEventEnd"
    assert 900 < never.run(waited_ms) < 2_000


def test_modules_and_scripts_with_integrity_count(wiki: CountedSite, context: BrowserContext) -> None:
    digest = hashlib.sha384(wiki.service.get("/plaudit.js").content).digest()
    integrity = f'integrity="sha384-{base64.b64encode(digest).decode()}" crossorigin'
    ways = {"module": 'type="module"', "checked": f"defer {integrity}", "both": f'type="module" {integrity}'}
    readers = {}
    for name, loading in ways.items():
        wiki.put(f"/{name}", attributes=f'data-page="b-{name}"', loading=loading)
        readers[name] = Reader(context.new_page())
        readers[name].page.goto(f"{wiki.origin}/{name}")
    for name, reader in readers.items():
        reader.has_sent(1)
        assert reader.sent == [{"page": f"b-{name}"}]
        assert reader.warnings == []


def test_manual_mode_sends_what_it_is_told(wiki: CountedSite, silent: dict[str, Reader]) -> None:
    reader = silent["manual"]
    reader.run("plaudit.view()")
    reader.run("plaudit.view({ url: '/listed?x=' + 'y'.repeat(5000) })")
    reader.run("plaudit.identify(17, '2.cd'); plaudit.view({ page: 42, url: '/ignored' })")
    reader.run("plaudit.identify(); document.title = 'x' + '\\u{1F44F}'.repeat(300)")
    reader.run("plaudit.view({ url: '/manual/2' })")
    reader.has_sent(4)
    assert reader.sent == [
        {"url": f"{wiki.origin}/manual/2"} | BY_ADA,
        {"url": f"{wiki.origin}/listed"} | BY_ADA,
        {"page": "42", "user": "17", "user_signature": "2.cd"},
        {"url": f"{wiki.origin}/manual/2", "title": "x" + "\U0001f44f" * 99},
    ]


@pytest.mark.parametrize("wish", ["dnt", "gpc"])
def test_who_asks_not_to_be_tracked_may_still_like(wiki: CountedSite, silent: dict[str, Reader], wish: str) -> None:
    reader, page = silent[wish], f"b-{wish}"
    signed = {"user": "bob", "user_signature": wiki.signature("bob")}
    reader.run("plaudit.view()")
    # Its signature is false: the site's script can read the service's answer.
    error = reader.run("plaudit.like().catch((error) => [error instanceof Error, error.code, error.message])")
    assert error[:2] == [True, "invalid_signature"]
    assert error[2]
    reader.run(f"plaudit.identify('bob', '{signed['user_signature']}')")
    assert reader.run("plaudit.like()") == {"accepted": 1, "duplicates": 0, "rejected": []}
    # As a listener it gets an event.
    assert reader.run("plaudit.unlike(new Event('click'))")["accepted"] == 1
    assert reader.run("plaudit.unlike({ url: '/other' })")["rejected"][0]["code"] == "unknown_page"
    assert reader.sent == [
        {"type": "like", "page": page} | BY_ADA,
        {"type": "like", "page": page} | signed,
        {"type": "unlike", "page": page} | signed,
        {"type": "unlike", "url": f"{wiki.origin}/other"} | signed,
    ]
    assert page not in wiki.views()


def test_a_prerendered_page_counts_when_it_is_shown(wiki: CountedSite, silent: dict[str, Reader]) -> None:
    reader = silent["prerendered"]
    reader.run("delete document.prerendering; document.dispatchEvent(new Event('prerenderingchange'))")
    reader.has_sent(1)
    assert reader.sent == [{"url": f"{wiki.origin}/prerendered", "title": "/prerendered"} | BY_ADA]


def test_a_missing_key_is_a_warning_and_breaks_nothing(silent: dict[str, Reader]) -> None:
    reader = silent["keyless"]
    assert reader.run("plaudit.view(); plaudit.like().catch((error) => error.message)") == reader.warnings[0]
    assert "data-key" in reader.warnings[0]
    assert (len(reader.warnings), reader.sent) == (1, [])


def test_a_reader_who_leaves_at_once_is_counted(wiki: CountedSite, context: BrowserContext) -> None:
    """Seen by a server, since neither Playwright's events nor its user agent reach a page that is being left."""
    leave = "<script>document.addEventListener('DOMContentLoaded', () => location = '/nowhere')</script>"
    with Site() as site:
        site.scripts["/plaudit.js"] = wiki.service.get("/plaudit.js").content
        site.pages["/left"] = f'{leave}<script defer src="/plaudit.js" data-key="pk_1" data-page="left"></script>'
        context.new_page().goto(f"{site.origin}/left")
        eventually(lambda: site.posted)
        assert site.posted == [("/api/v1/beacon?key=pk_1", b'{"page":"left"}')]


def test_another_origin_counts_nothing(wiki: CountedSite, context: BrowserContext) -> None:
    external_id = wiki.put("/stolen", attributes='data-page="b-stolen"')
    thief, owner = Reader(context.new_page()), Reader(context.new_page())
    with Site() as elsewhere:
        elsewhere.html = wiki.site.pages["/stolen"]
        thief.page.goto(f"{elsewhere.origin}/stolen")
        thief.has_sent(1)
        assert thief.run("plaudit.like().catch((error) => error.code)") == "origin_not_allowed"
        assert external_id not in wiki.views()
    owner.page.goto(f"{wiki.origin}/stolen")
    eventually(lambda: wiki.views().get(external_id) == 1)
