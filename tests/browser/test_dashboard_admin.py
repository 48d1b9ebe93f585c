"""The dashboard's admin pages in a real browser."""

import re

import requests
from playwright.sync_api import expect

from tests.browser.people import Watched, Wiki


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
    form = page.locator("form", has=page.get_by_role("button", name="Create client"))
    form.get_by_label("Name").fill("Server of the wiki")
    form.get_by_label(re.compile("^stats:read")).check()
    page.get_by_role("button", name="Create client").click()
    expect(page.locator(".secret code", has_text="sk_")).to_be_visible()
    expect(page.locator(".list tr", has_text="Server of the wiki")).to_contain_text("stats:read")
    watched.shoot("admin-access")
    page.get_by_role("button", name="I have saved it").click()
    expect(page.locator(".secret")).to_have_count(0)
    page.get_by_text("New token").click()
    form = page.locator("form", has=page.get_by_role("button", name="Create token"))
    form.get_by_label("Name").fill("Grafana")
    form.get_by_label("Days until it expires").fill("30")
    form.get_by_label(re.compile("^stats:read")).check()
    form.get_by_role("button").click()
    token = page.locator(".secret code", has_text="plt_demo_")
    expect(token).to_be_visible()
    watched.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == token.inner_text()
    bearer = {"Authorization": f"Bearer {token.inner_text()}"}
    me = f"{wiki.service.url}/api/v1/me"
    assert requests.get(me, headers=bearer, timeout=10).json()["scopes"] == ["stats:read"]
    watched.shoot("admin-token")
    page.get_by_role("button", name="I have saved it").click()
    expect(page.locator(".secret")).to_have_count(0)
    page.locator(".list tr", has_text="Grafana").get_by_role("button", name="Revoke").click()
    expect(page.locator(".list tr", has_text="Grafana")).to_have_count(0)
    assert requests.get(me, headers=bearer, timeout=10).status_code == 401
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
