"""Widgets and badges in a real browser, on a site of the tenant's and elsewhere."""

from playwright.sync_api import Browser, expect

from tests.browser.people import NASTY, SHOTS, Wiki
from tests.browser.site import Site
from tests.service import eventually


def test_the_widget_is_shown_on_the_keys_origins_only(browser: Browser, wiki: Wiki) -> None:
    for name, title in NASTY.items():
        wiki.put(f"embed-{name}", space="embed", likes=1, title=title, visibility="public")
    with Site() as site, Site() as elsewhere:
        body = {"origins": [site.origin]}
        key = wiki.service.post("/api/v1/keys", json=body, headers=wiki.headers).json()["key"]
        script = (
            f'<script async src="{wiki.service.url}/embed/popular.js" data-key="{key}" data-space="embed"></script>'
        )
        badge = f'<img alt="badge" src="{wiki.service.url}/embed/badge/embed-script.svg?key={key}&metric=likes">'
        site.html = elsewhere.html = f"<!doctype html><title>w</title>{badge}{script}"
        list_ = f"/embed/popular?key={key}&space=embed"
        # Each of the service's processes answers some of these.
        eventually(lambda: {wiki.service.get(list_).text.count("<li>") for _ in range(8)} == {len(NASTY)})
        context = browser.new_context()
        wrong: list[str] = []
        context.on("dialog", lambda dialog: wrong.append(dialog.message))
        page = context.new_page()
        page.goto(site.origin)
        rows = page.frame_locator("iframe").locator("li")
        expect(rows).to_have_count(len(NASTY))
        expect(rows.filter(has_text="<script>")).to_have_count(1)
        height = page.locator("iframe").evaluate("(frame) => frame.clientHeight")
        assert 80 < height < 400
        assert page.evaluate("document.images[0].naturalWidth") > 40
        SHOTS.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=SHOTS / "embed.png")
        # On another origin the frame stays empty, even where it is asked for as here.
        frame = f'<iframe src="{wiki.service.url}/embed/popular?key={key}&space=embed"></iframe>'
        site.html = elsewhere.html = f"<!doctype html><title>w</title>{frame}"
        page.goto(site.origin)
        expect(page.frame_locator("iframe").locator("li")).to_have_count(len(NASTY))
        refused: list[str] = []
        page.on("console", lambda message: refused.append(message.text))
        page.goto(elsewhere.origin)
        page.wait_for_timeout(500)
        expect(page.frame_locator("iframe").locator("li")).to_have_count(0)
        assert any("frame-ancestors" in text for text in refused)
        assert wrong == []
        context.close()
