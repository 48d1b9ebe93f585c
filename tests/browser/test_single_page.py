"""`plaudit.js` in a real single-page app, made with Vue's router: one view for each page that its reader sees."""

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser

from tests.browser.counted import AGENT, LONGEST_WAIT_MS, CountedSite, Reader
from tests.browser.npm import NpmFile, read_all
from tests.browser.site import Site
from tests.service import Service

VUE = NpmFile(
    "vue",
    "3.5.22",
    "dist/vue.runtime.global.prod.js",
    sha256="59c252182a500bd9453f21391bb8c448ac7dd23512502ae1b56e61943f52812d",
)
ROUTER = NpmFile(
    "vue-router",
    "4.5.1",
    "dist/vue-router.global.prod.js",
    sha256="5d559a4744354ae3c949f2d648d63dac0006e0f03b5ed1bb0129da1043a40c15",
)

# Titles and ids come late, as in an app that loads its articles: the address changes first.
APP = """<!doctype html><title>Loading</title>%(script)s
<div id="app"></div><script defer src="/vue.js"></script><script defer src="/vue-router.js"></script>
<script type="module">
  const { createRouter, %(history)s: createHistory } = VueRouter;
  const article = { render: () => Vue.h("p", "article") };
  const moved = { render: () => null, mounted: () => router.replace("/destination") };
  const routes = [
    { path: "/", component: article },
    { path: "/alias", redirect: "/target" },
    { path: "/moved", component: moved },
    { path: "/:name", component: article },
  ];
  const router = window.router = createRouter({ history: createHistory(), routes });
  router.beforeEach((to) => to.path === "/members" ? "/login" : true);
  router.afterEach((to) =>
    setTimeout(() => {
      document.title = `Title of ${to.path}`;
      if (!to.query.id) return;
      const meta = document.querySelector("meta") ?? document.createElement("meta");
      document.head.append(Object.assign(meta, { name: "plaudit-page", content: to.query.id }));
    }, 150)
  );
  Vue.createApp({ render: () => Vue.h(VueRouter.RouterView) }).use(router).mount("#app");
</script>"""
# Firefox and Safari had none for long.
NO_NAVIGATION_API = "Object.defineProperty(window, 'navigation', { value: undefined })"
# What is done, and how the view names the page that is shown then: by its path, or by an id.
STEPS: list[tuple[str, str | None, str | None]] = [
    ("router.push('/one')", "/one", None),
    ("router.push('/two')", "/two", None),
    ("router.replace('/three')", "/three", None),
    ("history.back()", "/one", None),
    ("router.push('/alias')", "/target", None),
    ("router.push('/members')", "/login", None),
    ("router.push('/moved')", "/destination", None),
    ("router.replace('/destination?sort=new')", None, None),
    ("router.push('/a?id=page-a')", None, "page-a"),
    ("router.push('/b?id=page-b')", None, "page-b"),
    ("router.push('/unnamed')", "/unnamed", None),
]


@pytest.fixture(scope="module")
def service(demo_service: Service) -> Service:
    return demo_service


@pytest.fixture
def site() -> Iterator[Site]:
    with Site() as running:
        running.scripts = dict(zip(("/vue.js", "/vue-router.js"), read_all(VUE, ROUTER), strict=True))
        yield running


def test_a_router_counts_each_page_once_under_its_own_name(browser: Browser, service: Service, site: Site) -> None:
    counted = CountedSite(service, site)
    by_path = APP % {"script": counted.script(), "history": "createWebHistory"}
    by_hash = APP % {"script": counted.script("data-hash"), "history": "createWebHashHistory"}
    site.html, site.pages = by_path, {"/hash": by_hash}
    context = browser.new_context(user_agent=AGENT)
    navigation, patched, _ = readers = [Reader(context.new_page()) for _ in range(3)]
    patched.page.add_init_script(NO_NAVIGATION_API)
    bases = dict(zip(readers, (counted.origin, counted.origin, f"{counted.origin}/hash#"), strict=True))
    expected: dict[Reader, list[dict[str, Any]]] = {reader: [] for reader in readers}

    # The guard redirects from the first address too.
    for reader in readers:
        reader.page.goto(f"{bases[reader]}/members")
    _expect(expected, bases, "/login", None)
    for step, path, page in STEPS:
        for reader in readers:
            reader.run(f"void {step}")
        _expect(expected, bases, path, page)
    navigation.page.wait_for_timeout(LONGEST_WAIT_MS)
    for reader in readers:
        assert reader.sent == expected[reader]
        assert reader.warnings == []
    assert patched.run("typeof navigation") == "undefined"
    context.close()


def _expect(
    expected: dict[Reader, list[dict[str, Any]]], bases: dict[Reader, str], path: str | None, page: str | None
) -> None:
    for reader, views in expected.items():
        if page:
            views.append({"page": page})
        elif path:
            views.append({"url": bases[reader] + path, "title": f"Title of {path}"})
        reader.has_sent(len(views))
