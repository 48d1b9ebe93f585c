"""The dashboard in a real browser: what an admin sees, and what changes while the page is open."""

import re
import time
from typing import Any

import pytest
import requests
from playwright.sync_api import Browser, Page, Route, StorageState, WebSocketRoute, expect

from tests.browser.people import SHOTS, Watched, Wiki
from tests.browser.site import Site
from tests.service import Service, eventually

PHONE: dict[str, Any] = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}
NASTY = {
    "script": '<script>alert("x")</script><img src=x onerror=alert(1)>',
    "rtl": "\u202egnp.exe \u2067\u05e2\u05d1\u05e8\u05d9\u05ea\u2069",
    "long": "averylongwordwithoutanyspace" * 12,
}
PICTURE = """
<svg xmlns="http://www.w3.org/2000/svg" width="64" height="64"><rect width="64" height="64" fill="#0a7"/>
<circle cx="32" cy="25" r="11" fill="#fff"/><circle cx="32" cy="62" r="22" fill="#fff"/></svg>
"""
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


def names(page: Page) -> list[str]:
    return page.locator(".board tbody .name a[data-route]").all_inner_texts()


def test_a_like_sent_through_the_api_moves_its_row_without_a_reload(stranger: Watched, wiki: Wiki) -> None:
    wiki.put("slow", space="race", likes=1)
    wiki.put("quick", space="race", likes=2)
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


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_wider_than_a_phones_screen(
    browser: Browser, demo_service: Service, signed_in: StorageState, wiki: Wiki, scheme: str
) -> None:
    for name, title in NASTY.items():
        wiki.put(f"phone-{name}", space="phone", likes=2, title=title)
    wiki.view(f"https://wiki.example/{NASTY['long']}")
    watched = Watched(browser, demo_service, **PHONE, color_scheme=scheme, storage_state=signed_in)
    page = watched.open("/dashboard?space=phone")
    expect(page.locator(".board tbody tr")).to_have_count(len(NASTY))
    for path in (
        "?space=phone",
        "?space=phone&page=phone-long",
        "/people",
        "/spaces",
        "/admin/access",
        "/admin/weights",
        "/admin/rejections",
    ):
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


def test_a_self_registered_user_sees_what_is_public_and_no_errors(stranger: Watched, wiki: Wiki) -> None:
    wiki.put("shown", space="mixed", likes=1, visibility="public")
    wiki.put("kept-back", space="mixed", likes=3)
    wiki.put("kept-apart", space="closed", likes=3)
    eventually(lambda: (wiki.likes_on("mixed"), wiki.likes_on("closed")) == ([3, 1], [3]))
    login = {"username": "registered_alone", "password": "correct horse battery"}
    made = {**login, "tenant": "demo", "email": "alone@example.org"}
    answer = wiki.service.post("/api/v1/auth/register", json=made)
    assert answer.status_code == 201, answer.text
    page = stranger.sign_in("/dashboard?metric=likes", **login)
    expect(page.locator(".board tbody tr").first).to_be_visible()
    expect(page.get_by_label("Space").locator("option", has_text="mixed")).to_have_count(1)
    assert "closed" not in page.get_by_label("Space").locator("option").all_inner_texts()
    stranger.shoot("registered-alone")
    page.get_by_label("Space").select_option("mixed")
    expect(page.get_by_role("heading", name="Top public pages")).to_be_visible()
    expect(page.locator(".board tbody tr")).to_have_count(1)
    assert names(page) == ["Title of shown"]
    expect(page.locator(".figure", has_text="Likes").locator(".big")).to_have_text("1")
    expect(page.locator(".live")).to_have_text("Live")
    wiki.like("shown", "later")
    expect(page.locator(".board td.value")).to_have_text("2")
    stranger.shoot("registered-alone-space")
    page.get_by_role("link", name="Title of shown").click()
    expect(page.get_by_role("dialog").get_by_role("heading")).to_have_text("Title of shown")
    page.keyboard.press("Escape")
    page.get_by_role("link", name="Spaces").click()
    expect(page.locator(".board tbody tr", has_text="mixed").locator("td.value").first).to_have_text("1")
    assert "closed" not in page.locator(".board").inner_text()
    stranger.shoot("registered-alone-spaces")
    page.get_by_role("link", name="People").click()
    expect(page.locator(".card")).to_be_visible()
    stranger.all_is_well()
    page.goto(f"{wiki.service.url}/dashboard?page=kept-back")
    expect(page.get_by_role("dialog").get_by_text("There is no such page")).to_be_visible()
    # An admin lets them see all, and takes it back while the page is open.
    path = f"{wiki.service.url}/api/v1/users/{answer.json()['id']}"
    assert requests.patch(path, json={"sees_private": True}, headers=wiki.headers, timeout=10).ok
    page.goto(f"{wiki.service.url}/dashboard?space=mixed&metric=likes")
    expect(page.locator(".board tbody tr")).to_have_count(2)
    expect(page.locator(".live")).to_have_text("Live")
    assert requests.patch(path, json={"sees_private": False}, headers=wiki.headers, timeout=10).ok
    page.get_by_role("button", name="30 days").click()
    expect(page.get_by_role("heading", name="Top public pages")).to_be_visible()
    expect(page.locator(".board tbody tr")).to_have_count(1)
    assert names(page) == ["Title of shown"]


def test_signing_out_and_a_session_that_ends(stranger: Watched) -> None:
    page = stranger.sign_in("/dashboard/people?window=30d")
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("button", name="Sign in")).to_be_visible()
    assert "plaudit_session" not in {cookie.get("name") for cookie in stranger.context.cookies()}
    stranger.sign_in("/dashboard/people?window=30d")
    expect(page.get_by_role("button", name="30 days")).to_have_attribute("aria-pressed", "true")
    stranger.context.clear_cookies()
    page.get_by_role("button", name="7 days").click()
    expect(page.get_by_text("Your session has ended")).to_be_visible()
    stranger.errors = [text for text in stranger.errors if "401" not in text]
    stranger.all_is_well()


def test_a_wrong_password_shows_a_readable_error(stranger: Watched) -> None:
    page = stranger.page
    page.goto(f"{stranger.service.url}/dashboard")
    stranger.shoot("sign-in")
    page.get_by_label("Tenant").fill("demo")
    page.get_by_label("Username").fill("admin")
    page.get_by_label("Password").fill("not the password")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_contain_text("not right")


def test_the_admin_pages_work(watched: Watched, wiki: Wiki) -> None:
    wiki.put("weighed", space="weights", likes=2)
    bad = {"events": [{"type": "view", "page": "no-such-page"}]}
    wiki.service.post("/api/v1/events", json=bad, headers=wiki.headers)
    page = watched.open("/dashboard/admin/access")
    page.get_by_text("New key").click()
    page.get_by_label("Origins").fill("wiki.example")
    page.get_by_role("button", name="Create key").click()
    expect(page.locator("form .wrong").filter(has_text="origins such as").first).to_be_visible()
    page.get_by_label("Origins").fill("https://wiki.example")
    page.locator("form", has_text="Origins").get_by_label("Name").fill("Browsers of the wiki")
    page.get_by_role("button", name="Create key").click()
    expect(page.locator(".list tr", has_text="Browsers of the wiki").locator("code").first).to_have_text(
        re.compile("^pk_demo_")
    )
    secret = page.locator(".secret code", has_text="rs_")
    expect(secret).to_be_visible()
    first_secret = secret.inner_text()
    page.evaluate("window.confirm = () => true")
    page.locator(".list tr", has_text="Browsers of the wiki").get_by_role("button", name="New signing secret").click()
    expect(secret).not_to_have_text(first_secret)
    watched.shoot("admin-key")
    page.get_by_role("button", name="I have saved it").click()
    expect(page.locator(".secret")).to_have_count(0)
    page.get_by_text("New client").click()
    page.get_by_role("button", name="Create client").click()
    expect(page.get_by_text("is needed")).to_be_visible()
    page.get_by_label("Name").first.fill("Server of the wiki")
    page.get_by_label(re.compile("^stats:read")).check()
    page.get_by_role("button", name="Create client").click()
    expect(page.locator(".secret code", has_text="sk_")).to_be_visible()
    expect(page.locator(".list tr", has_text="Server of the wiki")).to_contain_text("stats:read")
    watched.shoot("admin-access")
    page.get_by_role("button", name="I have saved it").click()
    expect(page.locator(".secret")).to_have_count(0)
    page.get_by_role("button", name="Action catalog").click()
    page.get_by_text("New action").click()
    form = page.locator(".card > details form")
    form.get_by_label("Type").fill("helped")
    form.get_by_label("Points", exact=True).fill("7")
    form.get_by_label("Maximum points per day").fill("70")
    form.get_by_label("Maximum times per day").fill("9")
    form.get_by_role("button", name="Add the action").click()
    helped = page.locator(".list tr", has_text="helped")
    expect(helped).to_contain_text("at most 70 points a day, at most 9 times a day")
    page.get_by_text("New action").click()
    form.get_by_label("Type").fill("helped")
    form.get_by_role("button", name="Add the action").click()
    expect(form.get_by_text("is there already")).to_be_visible()
    watched.shoot("admin-actions")
    page.get_by_role("button", name="Weights").click()
    page.get_by_label("Weight of a like").fill("100")
    page.get_by_role("button", name="Preview").click()
    expect(page.get_by_text(re.compile("would move on the board of the last 7 days"))).to_be_visible()
    watched.shoot("admin-weights")
    page.get_by_label("Weight of a like").fill("3")
    page.get_by_role("button", name="Preview").click()
    page.get_by_role("button", name="Apply these weights").click()
    expect(page.get_by_role("heading", name="History")).to_be_visible()
    page.get_by_role("button", name="Suspicious scores").click()
    expect(page.get_by_text("Nothing suspicious")).to_be_visible()
    page.get_by_role("button", name="Rejected events").click()
    expect(page.locator(".list code", has_text="unknown_page")).to_be_visible()
    watched.errors = [text for text in watched.errors if "422" not in text]
    watched.all_is_well()


def test_an_unknown_address_becomes_a_page_in_one_click(watched: Watched, wiki: Wiki) -> None:
    """Also by keyboard; another one with a title of the admin's own, and a third is dismissed."""
    rules = {"space_rules": [{"prefix": "/manual/", "space": "manual"}]}
    settings = f"{wiki.service.url}/api/v1/settings"
    assert requests.patch(settings, json=rules, headers=wiki.headers, timeout=10).ok
    with wiki.database() as database:
        database.execute("DELETE FROM unknown_addresses")
    paths = ["/manual/install-guide?lang=en", "/manual/long/" + "x" * 200, "/news"]
    for count, path in enumerate(reversed(paths), 1):
        for _ in range(count):
            assert wiki.view(f"https://wiki.example{path}")["rejected"][0]["code"] == "unknown_page"
    page = watched.open("/dashboard/admin/rejections")
    rows = page.locator("section", has=page.get_by_role("heading", name="Unknown addresses")).locator("tbody tr")
    expect(rows).to_have_count(3)
    expect(rows.first).to_contain_text("https://wiki.example/manual/install-guide?lang=*")
    expect(rows.first.locator(".number")).to_contain_text("3")
    watched.shoot("unknown-addresses")
    page.get_by_role("button", name=re.compile("^Make this a page: .*install-guide")).click()
    expect(page.locator(".notice")).to_contain_text("install-guide is a page now, in the space manual")
    expect(rows).to_have_count(2)
    expect(rows.first.get_by_role("button", name="Make this a page")).to_be_focused()
    assert wiki.view("https://wiki.example/manual/install-guide?lang=de")["accepted"] == 1
    rows.first.locator("summary").click()
    rows.first.get_by_label("Title").fill("Our own title")
    rows.first.get_by_label("Space").fill("not a key")
    watched.shoot("unknown-addresses-form")
    rows.first.locator("form button").click()
    expect(rows.first.locator("form .wrong").filter(has_text="1 to 64 of")).to_be_visible()
    rows.first.get_by_label("Space").fill("own")
    page.keyboard.press("Enter")
    expect(page.locator(".notice")).to_contain_text("Our own title is a page now, in the space own")
    watched.shoot("unknown-addresses-made")
    page.keyboard.press("Tab")
    expect(rows.first.get_by_role("button", name="Dismiss")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_text("There are no unknown addresses")).to_be_visible()
    watched.errors = [text for text in watched.errors if "422" not in text]
    watched.all_is_well()


def test_an_admin_opens_a_flagged_user_and_reverses_the_payments(watched: Watched, wiki: Wiki) -> None:
    wiki.pay("quick-fingers", 20_000)
    watched.context.add_init_script("window.confirm = () => true")
    page = watched.open("/dashboard/admin/integrity")
    page.get_by_role("link", name="quick-fingers").click()
    expect(page.get_by_role("dialog").get_by_role("heading")).to_have_text("quick-fingers")
    expect(page.get_by_role("dialog").locator(".list tbody tr")).to_have_count(1)
    watched.shoot("person")
    page.go_back()
    expect(page).to_have_url(re.compile("admin/integrity$"))
    page.get_by_role("button", name="Reverse").click()
    expect(page.locator(".badge")).to_have_text("reversed")
    watched.shoot("admin-integrity")
    watched.all_is_well()


def test_the_scoreboard_moves_as_people_are_paid(watched: Watched, wiki: Wiki) -> None:
    wiki.pay("ann", 5)
    wiki.pay("ben", 6)
    page = watched.open("/dashboard/people?window=1d")
    rows = page.locator(".board tbody tr")
    expect(rows.first.locator(".name")).to_have_text("ben")
    rows.first.locator("a").focus()
    for _ in range(2):
        wiki.pay("ann", 5)
    expect(rows.first.locator(".name")).to_have_text("ann")
    expect(page.get_by_role("link", name="ben")).to_be_focused()
    watched.all_is_well()


def test_people_have_names_and_pictures_or_initials(watched: Watched, wiki: Wiki) -> None:
    pictures = "https://pictures.example"
    sent: list[dict[str, str]] = []

    def answer(route: Route) -> None:
        sent.append(route.request.all_headers())
        if "gone" in route.request.url:
            route.abort()
        else:
            route.fulfill(body=PICTURE, content_type="image/svg+xml")

    watched.page.route(f"{pictures}/**", answer)
    for name, shown in {"ada": "Ada Lovelace", "kim": "Kim Gone", "lee": "Lee Plain"}.items():
        more = {} if name == "lee" else {"avatar_url": f"{pictures}/{'gone' if name == 'kim' else name}.svg"}
        wiki.put_user(name, display_name=shown, segments=["named"], **more)
        wiki.pay(name, 5)
    page = watched.open("/dashboard/people?window=1d&segment=named")
    rows = page.locator(".board tbody tr")
    expect(rows.locator(".name")).to_have_text(["Ada Lovelace", "Kim Gone", "Lee Plain"])
    picture = rows.nth(0).get_by_alt_text("Picture of Ada Lovelace")
    expect(picture).to_be_visible()
    assert picture.evaluate("image => [image.naturalWidth > 0, image.width, image.height]") == [True, 26, 26]
    expect(rows.nth(1).locator("[data-initials=KG]")).to_be_visible()
    expect(rows.nth(2).locator("[data-initials=LP]")).to_be_visible()
    assert sent
    assert not any("referer" in headers for headers in sent)
    watched.shoot("people-names")
    rows.nth(0).get_by_role("link").click()
    expect(page.get_by_role("heading", name="Ada Lovelace")).to_be_visible()
    watched.shoot("person-name")
    assert [error for error in watched.errors if "gone" not in error and "ERR_FAILED" not in error] == []


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
