"""The dashboard in a real browser: boards and pages, how they are shown, and what changes while they are open."""

import re
import time
from secrets import token_hex, token_urlsafe
from typing import Any

import pytest
from playwright.sync_api import Browser, Route, StorageState, WebSocketRoute, expect

from tests.browser.people import NASTY, Watched, Wiki, names
from tests.secrets_seen import SEEN
from tests.service import Service, eventually, plaudit_json

PHONE: dict[str, Any] = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}
PHONE_PATHS = ["?space=phone", "?space=phone&page=phone-long", "/people", "/spaces"]
PHONE_PATHS += ["/admin/access", "/admin/weights", "/admin/rejections"]
NO_LINKS = ["/\\evil.example", "//evil.example", "https://wiki.example\\@evil.example", "javascript:alert(1)", "/a", ""]


def test_only_plain_http_addresses_are_links(browser: Browser, demo_service: Service) -> None:
    page = browser.new_page()
    try:
        page.goto(f"{demo_service.url}/dashboard")
        module = page.locator('script[type="module"]').first.get_attribute("src") or ""
        linked = page.evaluate(
            "async ([dom, urls]) => urls.filter((await import(dom)).isExternalUrl)",
            [module.replace("main.js", "dom.js"), [*NO_LINKS, "https://wiki.example/a?b#c"]],
        )
    finally:
        page.close()
    assert linked == ["https://wiki.example/a?b#c"]


def test_a_like_sent_through_the_api_moves_its_row_without_a_reload(stranger: Watched, wiki: Wiki) -> None:
    wiki.put("slow", space="race", likes=1)
    wiki.put("quick", space="race", likes=2)
    stranger.page.emulate_media(reduced_motion="no-preference")  # the row glides to its place
    page = stranger.sign_in()
    page.get_by_label("Space").select_option("race")
    page.get_by_role("button", name="Likes", exact=True).first.click()
    expect(page.locator(".board tbody tr")).to_have_count(2)
    expect(page.locator(".live")).to_have_text("Live")
    assert names(page) == ["Title of quick", "Title of slow"]
    assert "space=race" in page.url
    assert "metric=likes" in page.url
    page.evaluate("window.isStillThisPage = true")
    stranger.shoot("content")
    for number in range(5, 8):
        wiki.like("slow", f"u{number}")
    expect(page.locator(".board tbody tr").first.locator(".name")).to_contain_text("slow")
    expect(page.locator(".board tbody tr").first.locator("td.value")).to_have_text("4")
    assert names(page) == ["Title of slow", "Title of quick"]
    assert page.evaluate("window.isStillThisPage") is True
    expect(page.locator(".figure", has_text="Likes").locator(".big")).to_have_text("6")
    stranger.all_is_well()


def test_a_page_opens_with_its_series_and_has_an_address_of_its_own(watched: Watched, wiki: Wiki) -> None:
    wiki.put("seen", space="series", likes=3)
    eventually(lambda: wiki.likes_on("series") == [3])
    page = watched.open("/dashboard?space=series")
    page.locator(".board .name a[data-route]").first.click()
    sheet = page.get_by_role("dialog")
    expect(sheet.get_by_role("heading")).to_have_text("Title of seen")
    expect(sheet.locator("table.grid tbody tr", has_text="Likes").locator("td").nth(1)).to_have_text("3")
    sheet.get_by_role("button", name="Likes").click()
    expect(sheet.get_by_text("3 likes in this period")).to_be_visible()
    sheet.get_by_role("button", name="Hourly").click()
    expect(sheet.get_by_role("button", name="Hourly")).to_have_attribute("aria-pressed", "true")
    chart = sheet.locator(".chart")
    expect(chart.locator("svg")).to_be_visible()
    box = chart.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] - 9, box["y"] + 60)
    expect(sheet.locator(".tip")).to_contain_text("3 likes")
    watched.shoot("page")
    assert "page=seen" in page.url
    address = page.url
    page.keyboard.press("Escape")
    expect(sheet).to_have_count(0)
    expect(page).not_to_have_url(re.compile("page=seen"))
    page.goto(address)
    expect(sheet.get_by_role("heading")).to_have_text("Title of seen")
    page.goto(f"{watched.service.url}/dashboard?page=nosuch")
    expect(sheet.get_by_text("There is no such page")).to_be_visible()
    watched.errors = [text for text in watched.errors if "404" not in text]
    watched.all_is_well()


def test_a_list_is_read_to_its_last_page(watched: Watched, wiki: Wiki) -> None:
    spaces = ["pages-a", "pages-b", "pages-c"]
    for space in spaces:
        wiki.put(f"in-{space}", space=space)

    def with_small_pages(route: Route) -> None:
        assert "limit=100" in route.request.url
        route.continue_(url=route.request.url.replace("limit=100", "limit=2"))

    watched.context.route("**/api/v1/spaces?*", with_small_pages)
    page = watched.open()
    for space in spaces:
        expect(page.get_by_label("Space").locator(f"option[value={space}]")).to_have_count(1)
    page.get_by_role("link", name="Spaces").click()
    for space in spaces:
        expect(page.locator(".board .name", has_text=space)).to_have_count(1)
    watched.all_is_well()


@pytest.mark.parametrize(("scheme", "paths"), [("light", PHONE_PATHS), ("dark", PHONE_PATHS[:2])])
def test_nothing_is_wider_than_a_phones_screen(
    browser: Browser, demo_service: Service, signed_in: StorageState, wiki: Wiki, scheme: str, paths: list[str]
) -> None:
    for name, title in NASTY.items():
        wiki.put(f"phone-{name}", space="phone", likes=2, title=title)
    wiki.view(f"https://wiki.example/{NASTY['long']}")
    watched = Watched(browser, demo_service, **PHONE, color_scheme=scheme, storage_state=signed_in)
    page = watched.open("/dashboard?space=phone")
    expect(page.locator(".board tbody tr")).to_have_count(len(NASTY))
    for path in paths:
        page.goto(f"{demo_service.url}/dashboard{path}")
        page.wait_for_load_state("networkidle")
        overflow = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert overflow <= 0, path
        watched.shoot(f"phone-{scheme}{re.sub('[^a-z]+', '-', path)}")
    dark = page.evaluate("getComputedStyle(document.body).color") == "rgb(232, 234, 240)"
    assert dark is (scheme == "dark")
    watched.all_is_well()
    watched.context.close()


def test_it_works_by_keyboard_alone(watched: Watched, wiki: Wiki) -> None:
    wiki.put("first", space="keys", likes=2)
    wiki.put("second", space="keys", likes=1)
    eventually(lambda: wiki.likes_on("keys") == [2, 1])
    page = watched.open("/dashboard?space=keys&metric=likes")
    expect(page.locator(".board tbody tr")).to_have_count(2)
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.closest('.board') !== null"):
            break
    page.keyboard.press("ArrowDown")
    expect(page.get_by_role("link", name="Title of second")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog").get_by_role("heading")).to_have_text("Title of second")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    watched.all_is_well()


def test_without_a_socket_it_polls_and_says_so(watched: Watched, wiki: Wiki) -> None:
    wiki.put("asked", space="polling", likes=1)
    eventually(lambda: wiki.likes_on("polling") == [1])

    def refuse(socket: WebSocketRoute) -> None:
        socket.close()

    watched.context.route_web_socket(re.compile(".*"), refuse)
    page = watched.open("/dashboard?space=polling&metric=likes")
    expect(page.locator(".live")).to_have_text("Polling")
    expect(page.locator(".board td.value")).to_have_text("1")
    with page.expect_response(lambda answer: "/leaderboards" in answer.url and answer.status == 304):
        pass
    wiki.like("asked", "later")
    expect(page.locator(".board td.value")).to_have_text("2", timeout=15_000)
    expect(page.locator(".live")).to_have_text("Polling")
    watched.all_is_well()


def test_titles_and_addresses_are_shown_as_text(watched: Watched, wiki: Wiki) -> None:
    for name, title in NASTY.items():
        wiki.put(f"nasty-{name}", space="nasty", likes=1, title=title)
    eventually(lambda: len(wiki.likes_on("nasty")) == len(NASTY))
    page = watched.open("/dashboard?space=nasty&metric=likes")
    expect(page.locator(".board tbody tr")).to_have_count(len(NASTY))
    assert set(names(page)) == set(NASTY.values())
    for name, title in NASTY.items():
        page.goto(f"{watched.service.url}/dashboard?page=nasty-{name}")
        expect(page.get_by_role("dialog").get_by_role("heading")).to_have_text(title)
    with wiki.database() as database:  # the API would not take it
        database.execute("UPDATE pages SET url = 'javascript:alert(1)' WHERE external_id = 'nasty-rtl'")
    page.goto(f"{watched.service.url}/dashboard?page=nasty-rtl")
    expect(page.get_by_role("dialog").get_by_text("javascript:alert(1)")).to_be_visible()
    assert page.locator("a[href^=javascript]").count() == 0
    refused = page.evaluate(
        "fetch('/api/v1/pages/x', {method: 'PUT', headers: {'X-Plaudit-Dashboard': '1',"
        " 'Content-Type': 'application/json'}, body: JSON.stringify({space: 's', title: 't',"
        " url: 'javascript:alert(1)'})}).then((answer) => answer.status)"
    )
    assert refused == 422
    watched.shoot("nasty")
    watched.errors = [text for text in watched.errors if "422" not in text]
    watched.all_is_well()


def test_the_theme_can_be_switched_and_is_remembered(watched: Watched) -> None:
    page = watched.open()
    before = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    page.get_by_role("button", name="Switch between light and dark").click()
    after = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    assert before != after
    page.reload()
    expect(page.locator(".top nav")).to_be_visible()
    assert page.evaluate("getComputedStyle(document.documentElement).backgroundColor") == after
    watched.all_is_well()


def test_on_a_slow_network_a_busy_board_is_still_shown(watched: Watched, wiki: Wiki) -> None:
    wiki.put("busy", space="busy", likes=1)
    eventually(lambda: wiki.likes_on("busy") == [1])

    def slowly(route: Route) -> None:
        time.sleep(0.6)
        route.continue_()

    page = watched.open("/dashboard?space=busy&metric=likes")
    expect(page.locator(".board td.value")).to_have_text("1")
    page.route("**/api/v1/leaderboards?*", slowly)
    for number in range(20, 30):
        wiki.like("busy", f"u{number}")
        page.wait_for_timeout(250)
    assert int(page.locator(".board td.value").inner_text()) > 1
    expect(page.locator(".board td.value")).to_have_text("11")
    watched.all_is_well()


def test_the_first_view_is_small(watched: Watched) -> None:
    watched.open()
    session = watched.context.new_cdp_session(watched.page)
    session.send("Network.enable")
    session.send("Network.clearBrowserCache")
    sizes: list[float] = []
    session.on("Network.loadingFinished", lambda event: sizes.append(event["encodedDataLength"]))
    watched.page.reload()
    watched.page.wait_for_load_state("networkidle")
    assert len(sizes) > 10
    assert sum(sizes) < 150_000


def test_a_password_that_a_command_printed_is_changed_before_anything_else(
    stranger: Watched, demo_service: Service
) -> None:
    name, chosen = f"newcomer_{token_hex(4)}", token_urlsafe(12)
    printed = plaudit_json("user", "create", "demo", name, data_dir=demo_service.data_dir)["password"]
    SEEN.update({printed, chosen})
    page = stranger.page
    page.goto(f"{demo_service.url}/dashboard")
    for label, value in (("Tenant", "demo"), ("Username", name), ("Password", printed)):
        page.get_by_label(label).fill(value)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", name="Choose a password")).to_be_visible()
    page.get_by_label("Present password").fill(printed)
    page.locator("[autocomplete=new-password]").first.fill(chosen)
    page.get_by_label("New password, again").fill(f"{chosen}!")
    page.get_by_role("button", name="Change password").click()
    expect(page.get_by_text("differs from the one above")).to_be_visible()
    page.get_by_label("New password, again").fill(chosen)
    page.get_by_role("button", name="Change password").click()
    expect(page.locator(".top nav")).to_be_visible()
    page.reload()
    expect(page.locator(".top nav")).to_be_visible()
    stranger.all_is_well()
