"""The dashboard in a real browser: who signs in and what they may see, and the people on its boards."""

import requests
from playwright.sync_api import Route, expect

from tests.browser.people import Watched, Wiki, names
from tests.service import eventually

PICTURE = """
<svg xmlns="http://www.w3.org/2000/svg" width="64" height="64"><rect width="64" height="64" fill="#0a7"/>
<circle cx="32" cy="25" r="11" fill="#fff"/><circle cx="32" cy="62" r="22" fill="#fff"/></svg>
"""


def test_a_wrong_password_shows_a_readable_error(stranger: Watched) -> None:
    page = stranger.page
    page.goto(f"{stranger.service.url}/dashboard")
    stranger.shoot("sign-in")
    page.get_by_label("Tenant").fill("demo")
    page.get_by_label("Username").fill("admin")
    page.get_by_label("Password").fill("not the password")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_contain_text("not right")


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


def test_an_admin_signs_somebody_out_everywhere(watched: Watched, stranger: Watched, wiki: Wiki) -> None:
    login = {"username": "lost_a_phone", "password": "correct horse battery"}
    made = wiki.service.post("/api/v1/auth/register", json={**login, "tenant": "demo", "email": "lost@example.org"})
    stranger.sign_in("/dashboard/people", **login)
    page = watched.open(f"/dashboard/people?user={made.json()['id']}")
    page.get_by_role("button", name="Sign out everywhere").click()
    expect(page.get_by_text("Signed out on all devices")).to_be_visible()
    # Others on this board may have pictures that cannot be loaded (see above).
    assert [error for error in watched.errors if "Failed to load resource: net::" not in error] == []
    stranger.page.get_by_role("link", name="Spaces").click()
    expect(stranger.page.get_by_text("Your session has ended")).to_be_visible()
    stranger.page.goto(f"{stranger.service.url}/dashboard/people?user={made.json()['id']}")
    expect(stranger.page.get_by_role("button", name="Sign in")).to_be_visible()
