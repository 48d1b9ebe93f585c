"""Visitors: the same for a day and counted once on it; nobody can be recognised afterwards; no robots."""

from datetime import timedelta

import pytest
from flask.testing import FlaskClient
from sqlalchemy import text

from analytics import checks, maintenance
from analytics.boards import checking, projection
from analytics.ingest import visitors as visitors_module
from analytics.ingest.visitors import NAMED_DAYS, Visit, Visitors, is_bot, named, visit_of
from analytics.ingest.writes import EventKind, Item
from tenants import retention
from tenants.db import owner_tx, tenant_tx, utcnow
from tests.analytics.conftest import put_page, views_of, write_events
from tests.people import Caller


def visitors_of(tenant: str) -> int:
    with tenant_tx(tenant) as tx:
        rows, total = tx.execute(
            text("""
                SELECT (SELECT COALESCE(sum(visitors), 0) FROM page_views_hour) AS rows,
                       (SELECT COALESCE(sum(visitors), 0) FROM page_counters) AS total
            """)
        ).one()
    assert rows == total
    return int(rows)


def test_a_visitor_is_the_same_in_every_process_and_another_by_day_tenant_network_and_agent(connected: None) -> None:
    now = utcnow()
    ours, others = Visitors(), Visitors()

    def identify(tenant: str = "a", network: str = "10.0.0.1", agent: str = "x", days: int = 0) -> Visit:
        return ours.identify(tenant, network=network, agent=agent, now=now + timedelta(days=days))

    visit = identify()
    assert others.identify("a", network="10.0.0.1", agent="x", now=now) == visit
    different = [identify(tenant="b"), identify(network="10.0.0.2"), identify(agent="y"), identify(days=1)]
    assert len({other.visitor for other in different} | {visit.visitor}) == 5
    assert identify(agent="y").network == visit.network
    assert len({other.network for other in different} | {visit.network}) == 4


def test_salts_are_deleted_after_two_days_and_with_them_who_visitors_were(connected: None) -> None:
    day = utcnow().replace(hour=0, minute=0, second=30) + timedelta(days=100)
    salt = visitors_module.salt_of(day.date())
    retention.purge_expired(now=day + timedelta(hours=47), is_over=lambda: False)
    assert visitors_module.salt_of(day.date()) == salt
    retention.purge_expired(now=day + timedelta(hours=48), is_over=lambda: False)
    assert visitors_module.salt_of(day.date()) != salt


def test_who_a_server_names_is_a_visitor_once_a_page_and_day_at_the_hour_received_first(tenant: str) -> None:
    put_page(tenant, "a"), put_page(tenant, "b")
    now = utcnow().replace(hour=12)
    earlier, yesterday = now - timedelta(hours=3), now - timedelta(days=1)

    def view(page: str, user: str | None, at: object = now) -> Item:
        return Item(EventKind.VIEW, page, at, visit=visit_of(user, at, now=now))  # type: ignore[arg-type]

    write_events(tenant, view("a", "ada"), view("a", "ada"), view("a", None), view("b", "ada"), view("a", "bob"))
    write_events(tenant, view("a", "ada", earlier), view("a", "ada", yesterday), view("a", "bob"))
    assert (views_of(tenant), visitors_of(tenant)) == (8, 4), "ada and bob on a, ada on b, ada on a yesterday"
    with tenant_tx(tenant) as tx:
        hours = tx.scalars(
            text("SELECT extract(hour FROM bucket_hour AT TIME ZONE 'UTC') FROM page_views_hour WHERE visitors > 0")
        )
        assert 9 not in {int(hour) for hour in hours}, "ada was received first at twelve"


def test_a_view_that_is_older_than_visitors_are_kept_adds_a_view_only() -> None:
    now = utcnow()
    assert visit_of("ada", now - timedelta(days=NAMED_DAYS - 2), now=now) == Visit(named("ada"))
    assert visit_of("ada", now - timedelta(days=NAMED_DAYS), now=now) is None


def test_visitors_are_a_metric_like_any_other(sender: Caller, tenant: str) -> None:
    put_page(tenant, "a")
    events = [{"type": "view", "page": "a", "user": user, "id": f"{user}-{n}"} for user in "xyz" for n in range(2)]
    for _ in range(2):
        sender("POST", "/api/v1/events", json={"events": events})
    projection.project_all(tenant, now=utcnow)
    stats = sender("GET", "/api/v1/pages/a/stats").get_json()
    assert (stats["views"]["1d"], stats["visitors"]["1d"], stats["visitors"]["all"]) == (6, 3, 3)
    board = sender("GET", "/api/v1/leaderboards?metric=visitors").get_json()
    assert [row["value"] for row in board["items"]] == [3]
    series = sender("GET", "/api/v1/pages/a/series?metric=visitors&step=hour").get_json()
    assert sum(point["value"] for point in series["points"]) == 3
    assert checking.check(tenant, now=utcnow()).differences == []


def test_rows_go_after_two_days_or_forty_and_what_they_counted_stays(tenant: str) -> None:
    put_page(tenant, "a")
    now = utcnow()
    browser = Visitors().identify(tenant, network="10.0.0.1", agent="x", now=now)
    views = [Item(EventKind.VIEW, "a", now, visit=visit) for visit in (browser, Visit(named("ada")))]
    write_events(tenant, *views)

    def kept() -> tuple[int, ...]:
        with owner_tx() as tx:
            return tuple(
                int(tx.scalar(text(f"SELECT count(*) FROM {table} WHERE tenant_id = :t"), {"t": tenant}) or 0)
                for table in ("page_visitors", "page_visitor_networks")
            )

    assert kept() == (2, 1)
    for days, left in ((1, (2, 1)), (2, (1, 0)), (39, (1, 0)), (40, (0, 0))):
        # Of this tenant only: the tests before have left hundreds.
        [*maintenance._purge_tenant(tenant, now=now + timedelta(days=days))]
        assert kept() == left, f"after {days} days"
    assert visitors_of(tenant) == 2


def test_the_check_finds_visitors_that_no_hour_has_counted(tenant: str) -> None:
    put_page(tenant, "a")
    now = utcnow()
    for ago in (0, 29):
        at = now - timedelta(days=ago)
        write_events(tenant, *(Item(EventKind.VIEW, "a", at, visit=Visit(named(user))) for user in "xyz"))
    with tenant_tx(tenant) as tx:
        assert visitors_module.forget(tx, "x") == 2
    found = [one for one in checks.check(tenant, now=now).differences if one.where == "page_visitors"]
    assert found == [], "what is deleted stays counted"
    day = (now - timedelta(days=29)).date()
    with owner_tx() as tx:
        statement = "UPDATE page_views_hour SET visitors = 1 WHERE tenant_id = :t AND bucket_hour < :before"
        tx.execute(text(statement), {"t": tenant, "before": now - timedelta(days=20)})
    found = [one for one in checks.check(tenant, now=now).differences if one.where == "page_visitors"]
    assert [(one.member, one.found, one.expected) for one in found] == [(f"a {day}", 2, 1)]


def test_a_named_visitors_rows_are_exported_and_erased(sender: Caller, client: FlaskClient, tenant: str) -> None:
    from tests.people import client_of

    put_page(tenant, "a")
    admin = client_of(client, tenant)
    sender("POST", "/api/v1/pages/a/views", json={"user": "ada"})
    sender("PUT", "/api/v1/pages/a/likes/ada")
    exported = admin("GET", "/api/v1/users/ext:ada/export").get_json()
    assert exported["views"] == [{"page": "a", "day": utcnow().date().isoformat()}]
    assert admin("DELETE", "/api/v1/users/ext:ada").status_code == 200
    with tenant_tx(tenant) as tx:
        assert tx.scalar(text("SELECT count(*) FROM page_visitors")) == 0
    assert visitors_of(tenant) == 1


def test_a_reader_whom_only_views_know_is_exported_and_erased(sender: Caller, client: FlaskClient, tenant: str) -> None:
    from tests.people import client_of, user_of

    put_page(tenant, "a")
    admin, member = client_of(client, tenant), user_of(client, tenant)
    for reader in ("ada", "bob"):
        sender("POST", "/api/v1/pages/a/views", json={"user": reader})
    for caller, reader in ((member, "ada"), (admin, "nobody")):
        for method, path in (("GET", f"/api/v1/users/ext:{reader}/export"), ("DELETE", f"/api/v1/users/ext:{reader}")):
            assert caller(method, path).status_code == 404, (reader, path)
    exported = admin("GET", "/api/v1/users/ext:ada/export").get_json()
    assert exported["views"] == [{"page": "a", "day": utcnow().date().isoformat()}]
    for reader in ("ada", "bob"):  # known as a user since the export, and not
        assert admin("DELETE", f"/api/v1/users/ext:{reader}").status_code == 200
        assert admin("GET", f"/api/v1/users/ext:{reader}/export").status_code == 404
    with tenant_tx(tenant) as tx:
        assert tx.scalar(text("SELECT count(*) FROM page_visitors")) == 0


@pytest.mark.parametrize(
    ("agent", "expected"),
    [
        ("", True),
        ("   ", True),
        ("Googlebot/2.1 (+http://www.google.com/bot.html)", True),
        ("GOOGLEBOT/2.1", True),
        ("curl/8.5.0", True),
        ("Mozilla/5.0 (X11; Linux x86_64; rv:130.0) Gecko/20100101 Firefox/130.0", False),
    ],
)
def test_a_robot_is_known_by_its_agent_and_an_empty_one_is_a_robot(agent: str, expected: bool) -> None:
    assert is_bot(agent) is expected
