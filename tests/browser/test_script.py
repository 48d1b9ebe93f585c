"""`plaudit.js` on a page, in a real browser: one view per navigation, none for those who do not want to be counted."""

from collections.abc import Iterator

import pytest
import requests
from playwright.sync_api import Browser, BrowserContext, Page

from tests.browser.site import Site
from tests.service import Service, eventually

AGENT = "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 Chrome/130.0 Safari/537.36"  # headless ones are robots


@pytest.fixture(scope="module")
def service(demo_service: Service) -> Service:
    return demo_service


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with Site() as running:
        yield running


class Wiki:
    """The tenant's side: its pages, its key, and how often each page was seen."""

    def __init__(self, service: Service, site: Site) -> None:
        self.service = service
        self.site = site
        self.headers = {"Authorization": f"Bearer {service.token()}"}
        answer = service.post("/api/v1/keys", json={"origins": [site.origin]}, headers=self.headers)
        self.key = answer.json()["key"]
        script = f'<script defer src="{service.url}/plaudit.js" data-key="{self.key}"></script>'
        site.html = f"<!doctype html><title>w</title>{script}"

    def page(self, path: str) -> str:
        body = {"space": "s", "title": path, "url": self.site.origin + path}
        external_id = f"b-{path.strip('/')}"
        requests.put(f"{self.service.url}/api/v1/pages/{external_id}", json=body, headers=self.headers, timeout=10)
        return external_id

    def views(self) -> dict[str, int]:
        """What was counted so far, by the database itself."""
        import psycopg

        from app.run.data_folder import read_state

        state = read_state(self.service.data_dir)
        assert state is not None
        with psycopg.connect(state["addresses"]["database_url"]) as connection:
            rows = connection.execute(
                "SELECT p.external_id, sum(v.views)::int FROM page_views_hour v"
                " JOIN pages p ON p.id = v.page_id GROUP BY 1"
            ).fetchall()
        return dict(rows)


@pytest.fixture(scope="module")
def wiki(service: Service, site: Site) -> Wiki:
    return Wiki(service, site)


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    context = browser.new_context(user_agent=AGENT)
    yield context
    context.close()


def visit(page: Page, url: str) -> None:
    page.goto(url, wait_until="load")
    page.wait_for_timeout(300)


def test_one_view_per_navigation(wiki: Wiki, context: BrowserContext) -> None:
    first, second, third = (wiki.page(path) for path in ("/one", "/two", "/three"))
    page = context.new_page()
    problems: list[str] = []
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    visit(page, f"{wiki.site.origin}/one")
    eventually(lambda: wiki.views().get(first) == 1)
    page.evaluate("history.pushState({}, '', '/two')")
    eventually(lambda: wiki.views().get(second) == 1)
    page.evaluate("history.pushState({}, '', '/two#part')")  # the same page
    visit(page, f"{wiki.site.origin}/three?utm_source=x")
    eventually(lambda: wiki.views().get(third) == 1)
    page.wait_for_timeout(500)
    assert {name: wiki.views()[name] for name in (first, second, third)} == {first: 1, second: 1, third: 1}
    assert problems == []
    assert context.cookies() == []


@pytest.mark.parametrize("wish", ["navigator.doNotTrack = '1'", "navigator.globalPrivacyControl = true"])
def test_who_asks_not_to_be_tracked_is_not(wiki: Wiki, context: BrowserContext, wish: str) -> None:
    name, _, value = wish.removeprefix("navigator.").partition(" = ")
    context.add_init_script(f"Object.defineProperty(navigator, '{name}', {{get: () => {value}}})")
    path = f"/quiet-{name}"
    external_id = wiki.page(path)
    page = context.new_page()
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.url))
    visit(page, wiki.site.origin + path)
    page.wait_for_timeout(700)
    assert any("plaudit.js" in url for url in sent)
    assert not any("beacon" in url for url in sent)
    assert external_id not in wiki.views()


def test_another_origin_counts_nothing(wiki: Wiki, context: BrowserContext) -> None:
    external_id = wiki.page("/stolen")
    with Site() as elsewhere:
        html = wiki.site.html.replace("data-key", f'data-page="{external_id}" data-key')
        elsewhere.html = html
        page = context.new_page()
        with page.expect_request(lambda request: "beacon" in request.url):
            page.goto(f"{elsewhere.origin}/stolen")
        page.wait_for_timeout(700)
        assert external_id not in wiki.views()
    wiki.site.html, before = html, wiki.site.html
    visit(context.new_page(), f"{wiki.site.origin}/stolen")
    wiki.site.html = before
    eventually(lambda: wiki.views().get(external_id) == 1)
