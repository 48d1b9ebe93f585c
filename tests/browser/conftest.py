"""A real Chromium: Debian's. Without one these tests skip, visibly; in CI they fail."""

import os
import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, StorageState, sync_playwright

from tests.browser.people import Watched, Wiki
from tests.service import Service

# The first has the same engine without a browser's window and profile: a page takes it a quarter of the CPU time.
BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, BROWSERS)), None)
QUIET = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
QUIET += ["--disable-component-update", "--disable-sync", "--disable-default-apps"]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        if os.environ.get("CI"):
            pytest.fail("CI must have a Chromium: .ci/run installs it")
        pytest.skip("no Chromium on this machine (Debian: apt-get install chromium-headless-shell)")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def wiki(demo_service: Service) -> Wiki:
    return Wiki(demo_service)


@pytest.fixture(scope="module")
def signed_in(browser: Browser, demo_service: Service) -> StorageState:
    user = Watched(browser, demo_service)
    user.sign_in()
    state = user.context.storage_state()
    user.context.close()
    return state


@pytest.fixture
def watched(browser: Browser, demo_service: Service, signed_in: StorageState) -> Iterator[Watched]:
    user = Watched(browser, demo_service, storage_state=signed_in)
    yield user
    user.context.close()


@pytest.fixture
def stranger(browser: Browser, demo_service: Service) -> Iterator[Watched]:
    user = Watched(browser, demo_service)
    yield user
    user.context.close()
