"""Pages that make themselves: once, where they are allowed, and no more than a day may have."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select, text

from analytics.ingest import auto_pages, page_writes, pages, unknown_addresses
from analytics.ingest.auto_pages import place_of, rule_for
from analytics.ingest.page_writes import DuplicateUrl
from analytics.ingest.pages import EXTERNAL_ID, Page
from app.settings import Settings
from tenants import ceilings, retention
from tenants import settings as tenant_settings
from tenants.ceilings import Ceiling
from tenants.db import owner_tx, tenant_tx, utcnow
from tenants.settings import TenantSettings
from tests.analytics.ingest.test_unknown_addresses import listed, refuse
from tests.conftest import redis_unavailable
from tests.service import blocked_connections, eventually

SITE = "https://wiki.example"
ORIGINS = frozenset({SITE, "http://localhost:3000", "https://www.blog.example"})
RULES = [
    {"prefix": "/docs/api/", "space": "api", "visibility": "public"},
    {"prefix": "/docs/", "space": "docs"},
    {"prefix": "/caf\u00e9", "space": "food"},
]


def settings_of(**changes: Any) -> TenantSettings:
    return tenant_settings.merge(TenantSettings(), {"space_rules": RULES, **changes})


def create(tenant: str, url: str, settings: TenantSettings | None = None, **changes: Any) -> str | None:
    with tenant_tx(tenant) as tx:
        defaults = {"canonical": None, "title": None, "origins": ORIGINS, "network": url, "now": utcnow()}
        arguments = {**defaults, **changes}
        return auto_pages.create(tx, url=url, settings=settings or settings_of(), **arguments)


def page_of(tenant: str, external_id: str | None) -> Page:
    assert external_id is not None
    with tenant_tx(tenant) as tx:
        return pages.get(tx, external_id)


def count(tenant: str) -> int:
    with tenant_tx(tenant) as tx:
        return pages.count(tx, 10_000)


def test_the_first_view_makes_a_private_page_with_the_documents_title(tenant: str) -> None:
    refuse(tenant, f"{SITE}/Guide/Install", f"{SITE}/other")
    made = create(
        tenant, f"{SITE}/Guide/Install/?utm_source=x#top", title=" <b>How to\n\tinstall</b> \u202e" + "x" * 300
    )
    page = page_of(tenant, made)
    assert (page.url, page.space_key, page.visibility) == (f"{SITE}/Guide/Install", "web", "private")
    assert page.title == ("<b>How to install</b> " + "x" * 300)[:200]
    assert page.external_id.startswith("Guide-Install~")
    assert listed(tenant) == {f"{SITE}/other": 1}
    assert create(tenant, "http://WWW.wiki.example:80/Guide/./Install", title="Another") == made
    assert page_of(tenant, made).title == page.title
    assert count(tenant) == 1


@pytest.mark.parametrize(
    ("url", "title"),
    [
        (f"{SITE}/a/Read%20me/", "Read me"),
        (f"{SITE}/", "wiki.example"),
        (f"{SITE}/?id=5", "wiki.example"),
        (f"{SITE}/%E6%97%A5%E6%9C%AC", "\u65e5\u672c"),
        (f"{SITE}/%00%0a", "wiki.example"),
    ],
)
def test_a_page_without_a_title_is_called_by_its_address(tenant: str, url: str, title: str) -> None:
    made = create(tenant, url, title=" \n ")
    assert page_of(tenant, made).title == title
    assert EXTERNAL_ID.fullmatch(made or "")


def test_the_canonical_address_counts_on_an_allowed_origin_only(tenant: str) -> None:
    shared = create(tenant, f"{SITE}/a?sort=up", canonical=f"{SITE}/a")
    assert page_of(tenant, shared).url == f"{SITE}/a"
    assert create(tenant, f"{SITE}/a?sort=down", canonical=f"{SITE}/a") == shared
    with tenant_tx(tenant) as tx:
        page_writes.put(tx, "own", space="x", title="Own", url=f"{SITE}/own", now=utcnow())
    assert create(tenant, f"{SITE}/own?sort=up", canonical=f"{SITE}/own/") == "own"
    for canonical in ("https://evil.example/b", "javascript:alert(1)", "", "nonsense"):
        other = create(tenant, f"{SITE}/b?sort=up", canonical=canonical)
        assert page_of(tenant, other).url == f"{SITE}/b?sort=up"
    assert page_of(tenant, create(tenant, "http://localhost:3000/x", canonical="https://www.blog.example/x")).url == (
        "https://www.blog.example/x"
    )


@pytest.mark.parametrize(
    "url", ["https://evil.example/a", f"{SITE}.evil.example/", "javascript:1", "", f"{SITE}/{'x' * 3000}", "//a/b"]
)
def test_no_page_is_made_elsewhere(tenant: str, url: str) -> None:
    assert create(tenant, url, canonical=f"{SITE}/a") is None
    assert place_of(url, f"{SITE}/a", ORIGINS) is None
    assert count(tenant) == 0


@pytest.mark.parametrize(
    ("path", "space", "visibility"),
    [
        ("/docs/api/v1", "api", "public"),
        ("/docs/api", "api", "public"),
        ("/docs/apis", "docs", "private"),
        ("/docs/../docs/%61pi/", "api", "public"),
        ("/docs/api%2Fv1", "docs", "private"),
        ("/docs", "docs", "private"),
        ("/docs-old/api", "web", "private"),
        ("/caf%C3%A9s", "food", "private"),
        ("/?p=/docs/", "web", "private"),
    ],
)
def test_the_first_rule_that_matches_decides_about_space_and_visibility(path: str, space: str, visibility: str) -> None:
    rule = rule_for(SITE + path, settings_of())
    assert (rule.space, rule.visibility) == (space, visibility)


def test_a_public_rule_makes_a_public_page(tenant: str) -> None:
    page = page_of(tenant, create(tenant, f"{SITE}/docs/api/v1"))
    assert (page.space_key, page.visibility) == ("api", "public")


def test_eight_processes_that_see_the_first_view_make_one_page(tenant: str) -> None:
    together = threading.Barrier(8)

    def first_view(number: int) -> str | None:
        together.wait()
        return create(tenant, f"{SITE}/same?utm_source={number}", settings_of(limits={"auto_pages_per_day": 2}))

    with ThreadPoolExecutor(8) as threads:
        made = set(threads.map(first_view, range(8)))
    assert len(made) == 1
    assert made != {None}
    assert count(tenant) == 1
    assert create(tenant, f"{SITE}/second", settings_of(limits={"auto_pages_per_day": 2})), "it was counted once"
    assert create(tenant, f"{SITE}/third", settings_of(limits={"auto_pages_per_day": 2})) is None


def test_a_day_has_a_limit_that_concurrent_views_do_not_pass(tenant: str) -> None:
    settings, now = settings_of(limits={"auto_pages_per_day": 3}), utcnow().replace(hour=12)
    with ThreadPoolExecutor(6) as threads:
        made = list(threads.map(lambda number: create(tenant, f"{SITE}/{number}", settings, now=now), range(6)))
    assert len([one for one in made if one]) == 3 == count(tenant)
    assert create(tenant, f"{SITE}/0") or create(tenant, f"{SITE}/1"), "what exists stays"
    assert create(tenant, f"{SITE}/tomorrow", settings, now=now + timedelta(days=1)) is not None
    never = settings_of(limits={"auto_pages_per_day": 0})
    assert create(tenant, f"{SITE}/never", never, now=now + timedelta(days=2)) is None


def test_one_network_makes_half_of_what_the_others_leave(tenant: str) -> None:
    settings = settings_of(limits={"auto_pages_per_day": 8})

    def made_by(network: str, path: str) -> int:
        return sum(create(tenant, f"{SITE}/{path}/{n}", settings, network=network) is not None for n in range(9))

    assert (made_by("10.0.0.1", "a"), made_by("10.0.0.2", "b")) == (4, 2)
    assert (made_by("10.0.0.1", "c"), made_by("10.0.0.3", "d")) == (0, 1)


@pytest.mark.parametrize("is_redis_away", [False, True])
def test_a_network_that_sends_several_at_once_makes_no_more(
    tenant: str, settings: Settings, is_redis_away: bool
) -> None:
    """They wait for the day's row together, before any of them is counted."""
    of_three = settings_of(limits={"auto_pages_per_day": 3})
    assert create(tenant, f"{SITE}/by-another", of_three)

    def make(number: int) -> str | None:
        return create(tenant, f"{SITE}/{number}", of_three, network="10.0.0.1")

    with redis_unavailable() if is_redis_away else nullcontext(), ThreadPoolExecutor(2) as threads:
        with tenant_tx(tenant, separate=True) as tx:
            tx.execute(text("UPDATE auto_pages_day SET made = made WHERE tenant_id = :tenant"), {"tenant": tenant})
            pages = [threads.submit(make, number) for number in range(2)]
            eventually(lambda: blocked_connections(settings.database_url or "") == 2, within_s=5)
        made = [one.result() for one in pages] + [make(2)]
    assert len([one for one in made if one]) == 1, "half of the two that another network has left"


@pytest.mark.parametrize("ceiling", [Ceiling.PAGES, Ceiling.SPACES])
def test_a_ceiling_is_a_refusal_that_does_not_count(tenant: str, ceiling: Ceiling) -> None:
    assert create(tenant, f"{SITE}/first")
    with owner_tx() as tx:
        ceilings.change(tx, tenant, {ceiling: 1})
    assert create(tenant, f"{SITE}/docs/second") is None
    with tenant_tx(tenant) as tx:
        assert tx.scalar(select(auto_pages.AutoPagesDay.made)) == 1
    assert count(tenant) == 1


def test_a_page_that_moved_keeps_the_views_of_its_first_address(tenant: str) -> None:
    made = create(tenant, f"{SITE}/before")
    with tenant_tx(tenant) as tx:
        page_writes.put(tx, made or "", space="x", title="Moved", url=f"{SITE}/after", now=utcnow())
    assert create(tenant, f"{SITE}/before") == made
    assert page_of(tenant, made).title == "Moved"


def test_a_listed_address_becomes_the_page_of_every_query(tenant: str) -> None:
    refuse(tenant, f"{SITE}/docs/show?id=5", f"{SITE}/docs/show?page=2", title="Show")
    with tenant_tx(tenant) as tx:
        make: dict[str, Any] = {"settings": settings_of(), "now": utcnow()}
        page = auto_pages.make_listed(tx, f"{SITE}/docs/show?id=*", **make).page
        assert (page.url, page.title, page.space_key) == (f"{SITE}/docs/show", "Show", "docs")
        assert pages.find_by_address(tx, [f"{SITE}/docs/show?id=6"], ORIGINS) == page.external_id
    assert listed(tenant) == {}
    refuse(tenant, f"{SITE}/docs/show")
    with tenant_tx(tenant) as tx:
        with pytest.raises(DuplicateUrl):
            auto_pages.make_listed(tx, f"{SITE}/docs/show", **make)
        with pytest.raises(unknown_addresses.AddressNotListed):
            auto_pages.make_listed(tx, f"{SITE}/never-seen", **make)


def test_counts_of_days_are_kept_for_two_days(tenant: str) -> None:
    now = utcnow()
    for ago in (0, 1, 3):
        assert create(tenant, f"{SITE}/{ago}", now=now - timedelta(days=ago))
    retention.purge_expired(now=now, is_over=lambda: False)
    with tenant_tx(tenant) as tx:
        days = set(tx.scalars(text("SELECT day FROM auto_pages_day")))
    assert now.date() in days
    assert (now - timedelta(days=3)).date() not in days
