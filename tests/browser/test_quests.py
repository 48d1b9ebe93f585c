"""Quests in a real browser: two people, one of them with a phone, from the offer to the payment."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from playwright.sync_api import Browser, Page, Route, expect

from tests.browser.people import Watched, Wiki
from tests.service import Service

PHONE: dict[str, Any] = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}
PASSWORD = "correct horse battery"
# Nothing of it is markup.
TITLE = "Translate <img src=x onerror=alert(1)>"
LEAST_BUTTON_PX = 38


@contextmanager
def member(browser: Browser, service: Service, username: str, path: str, **options: Any) -> Iterator[Watched]:
    """Somebody who has just registered, in a browser of their own."""
    login = {"username": username, "password": PASSWORD}
    made = {**login, "tenant": "demo", "email": f"{username}@example.org"}
    answer = service.post("/api/v1/auth/register", json=made)
    assert answer.status_code == 201, answer.text
    watched = Watched(browser, service, **options)
    try:
        watched.sign_in(path, **login)
        expect(watched.page.locator(".live")).to_have_text("Live")
        yield watched
    finally:
        watched.context.close()


def fits(page: Page) -> bool:
    """Nothing is wider than the screen, and every button of the quest can be hit with a finger."""
    overflow = page.evaluate(
        "Math.max(...[document.documentElement, ...document.querySelectorAll('.sheet')]"
        ".map((one) => one.scrollWidth - one.clientWidth))"
    )
    heights = [box["height"] for one in page.locator(".part button:visible").all() if (box := one.bounding_box())]
    return overflow <= 0 and min(heights, default=LEAST_BUTTON_PX) >= LEAST_BUTTON_PX


def offer(page: Page) -> None:
    page.get_by_text("New quest").click()
    form = page.locator("form.fields")
    form.get_by_label("Title").fill("No")
    form.get_by_label("Description").fill("All three chapters of the guide.")
    form.get_by_label("XP").fill("120")
    form.get_by_label("Reputation").fill("5")
    form.get_by_label("Tags").fill("docs, translation")
    form.get_by_label("Requirements").fill("Knows both languages\nHas read it")
    form.get_by_role("button", name="Offer this quest").click()
    expect(form.locator("label", has_text="Title").locator(".wrong")).to_contain_text("between 3 and 100")
    form.get_by_label("Title").fill(TITLE)
    form.get_by_role("button", name="Offer this quest").click()


def test_a_quest_is_offered_done_on_a_phone_attested_and_paid(
    browser: Browser, demo_service: Service, wiki: Wiki
) -> None:
    people, quests = "/dashboard/people?window=1d", "/dashboard/quests"
    with (
        member(browser, demo_service, "quest_ada", quests) as ada,
        member(browser, demo_service, "quest_ben", quests, **PHONE) as ben,
    ):
        for one in (ada, ben):
            one.page.evaluate("window.isStillThisPage = true")
        offer(ada.page)
        ada_sheet, ben_sheet = ada.page.get_by_role("dialog"), ben.page.get_by_role("dialog")
        expect(ada_sheet.get_by_role("heading", level=2)).to_have_text(TITLE)
        expect(ada_sheet.locator("summary", has_text="Cancel the quest")).to_be_visible()
        expect(ada_sheet.get_by_role("button", name="Claim")).to_have_count(0)
        ada.shoot("quest-offered")

        # It appears in the other's open list by itself.
        expect(ben.page.get_by_role("link", name=TITLE)).to_be_visible()
        ben.shoot("quests-list-phone")
        ben.page.get_by_role("link", name=TITLE).click()
        claim = ben_sheet.get_by_role("button", name="Claim this quest")
        expect(claim).to_be_visible()
        assert fits(ben.page)
        ben.shoot("quest-open-phone")

        def too_late(route: Route) -> None:
            route.continue_(headers={**route.request.headers, "if-match": '"0"'})

        ben.context.route("**/claim", too_late, times=1)
        claim.click()
        expect(ben_sheet.get_by_text("Somebody changed this quest while you looked at it")).to_be_visible()
        claim.click()
        expect(ben_sheet.get_by_text("The quest is now: Claimed")).to_be_visible()
        ben_sheet.get_by_label("What you did").fill("Done:\n<b>see</b> the third chapter.")
        assert fits(ben.page)
        ben.shoot("quest-claimed-phone")
        ben_sheet.get_by_role("button", name="Submit your work").click()
        expect(ben_sheet.get_by_role("button", name="Withdraw the submission")).to_be_visible()
        expect(ben_sheet.get_by_label("Rating")).to_have_count(0)
        assert fits(ben.page)
        ben.shoot("quest-submitted-phone")
        ben_sheet.get_by_role("button", name="Close").click()
        ben.page.get_by_role("button", name="Mine").click()
        performed = ben.page.get_by_label("Performed by you")
        expect(performed.locator("li", has_text=TITLE)).to_contain_text("In review")
        assert fits(ben.page)
        ben.shoot("quests-mine-phone")

        # The board of XP is open on the phone when the work is attested.
        ben.page.get_by_role("link", name="People").click()
        ben.page.get_by_role("button", name="XP").click()
        expect(ben.page).to_have_url(re.compile("metric=xp"))
        row = ben.page.locator(".board tbody tr", has_text="quest_ben")
        expect(row).to_have_count(0)

        expect(ada_sheet.get_by_text("<b>see</b> the third chapter.")).to_be_visible()
        ada.shoot("quest-to-attest")
        ada_sheet.get_by_role("button", name="Attest this work").click()
        expect(ada_sheet.get_by_text("is needed")).to_be_visible()
        ada_sheet.get_by_label("Rating").select_option("5")
        ada_sheet.get_by_label("Comments").fill("Thank you!")
        ada_sheet.get_by_role("button", name="Attest this work").click()
        expect(ada_sheet.get_by_text("The quest is now: Complete")).to_be_visible()
        expect(ada_sheet.get_by_text("120 XP: paid")).to_be_visible()
        expect(ada_sheet.locator(".history li")).to_have_count(4)
        ada.shoot("quest-complete")
        expect(row.locator("td.value")).to_have_text("120")
        assert fits(ben.page)
        ben.shoot("quests-xp-phone")
        for one in (ada, ben):
            assert one.page.evaluate("window.isStillThisPage") is True

        row.locator("a").click()
        expect(ben_sheet.locator(".figure", has_text="Quests completed").locator(".big")).to_have_text("1")
        assert fits(ben.page)
        ben.shoot("quests-person-phone")
        ada.page.goto(f"{demo_service.url}{people}&metric=xp")
        expect(ada.page.locator(".board tbody tr", has_text="quest_ben")).to_have_count(1)
        for one, expected in ((ada, "422"), (ben, "412")):
            one.errors = [text for text in one.errors if expected not in text]
            one.all_is_well()


def test_quests_that_are_not_enabled_are_not_offered(watched: Watched) -> None:
    def disabled(route: Route) -> None:
        route.fulfill(status=403, content_type="application/problem+json", body='{"code": "quests_disabled"}')

    watched.context.route("**/api/v1/quests?*", disabled)
    page = watched.open("/dashboard/quests")
    expect(page.get_by_text("Quests are not enabled here")).to_be_visible()
    expect(page.get_by_role("link", name="Quests")).to_be_hidden()
    expect(page.get_by_text("New quest")).to_be_hidden()
    watched.errors = [text for text in watched.errors if "403" not in text]
    watched.all_is_well()
