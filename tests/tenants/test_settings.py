"""Settings: typed, with defaults; only what the tenant has set is stored."""

from datetime import timedelta
from typing import Any

import pytest
from flask.testing import FlaskClient
from sqlalchemy import func, select, text

from tenants import credentials
from tenants import settings as tenant_settings
from tenants.credential_feed import CredentialChange
from tenants.db import tenant_tx, utcnow
from tenants.errors import Invalid, Stale
from tenants.settings import RANGES, SpaceRule, TenantSettings, VisiblePages, is_origin, merge
from tests.people import client_of


def test_what_a_tenant_said_is_stored_as_it_said_it_and_what_a_newer_release_wrote_is_kept(
    client: FlaskClient, tenant: str
) -> None:
    """Also where it said the default, which another release may change."""
    admin = client_of(client, tenant)

    def stored() -> dict[str, object]:
        with tenant_tx(tenant) as tx:
            found: dict[str, object] = tx.execute(text("SELECT overrides FROM tenant_settings")).scalar_one()
            return found

    admin("PATCH", "/api/v1/settings", json={"signup_open": False, "limits": {"score_updates_per_minute": 10}})
    said = {"signup_open": False, "limits": {"score_updates_per_minute": 10}}
    assert stored() == said
    newer = '{"from_the_future": 1, "limits": {"of_the_future": 2, "score_updates_per_minute": 11}}'
    with tenant_tx(tenant) as tx:
        tx.execute(text("UPDATE tenant_settings SET overrides = overrides || CAST(:n AS jsonb)"), {"n": newer})
    assert admin("GET", "/api/v1/settings").get_json()["limits"]["score_updates_per_minute"] == 11
    admin("PATCH", "/api/v1/settings", json={"signup_open": True, "limits": {"beacons_per_minute": 5}})
    limits = {"of_the_future": 2, "score_updates_per_minute": 11, "beacons_per_minute": 5}
    assert stored() == {"signup_open": True, "from_the_future": 1, "limits": limits}
    assert admin("GET", "/api/v1/settings").get_json()["signup_open"] is True


def test_the_default_of_every_number_is_in_its_range() -> None:
    defaults = TenantSettings()
    numbers = {
        f"{group}.{name}": number
        for group in ("limits", "integrity", "retention", "quests")
        for name, number in vars(getattr(defaults, group)).items()
        if not isinstance(number, bool)
    }
    numbers |= {name: getattr(defaults, name) for name in ("session_idle_days", "admin_session_idle_days")}
    assert numbers.keys() == RANGES.keys()
    assert [name for name, number in numbers.items() if not RANGES[name][0] <= number <= RANGES[name][1]] == []


def test_every_wrong_setting_of_a_change_is_named() -> None:
    wrong: dict[str, Any] = {"signup_open": 1, "limits": {"beacons_per_minute": 0, "nonsense": 1}, "retention": []}
    with pytest.raises(Invalid) as refused:
        merge(TenantSettings(), wrong)
    assert set(refused.value.errors or {}) == {
        "signup_open",
        "limits.beacons_per_minute",
        "limits.nonsense",
        "retention",
    }
    changed = merge(TenantSettings(), {"signup_sees": "all", "allowed_origins": ["https://a.example"] * 2})
    assert (changed.signup_sees, changed.allowed_origins) == (VisiblePages.ALL, ("https://a.example",))
    assert changed.limits == TenantSettings().limits


def test_space_rules_keep_their_order_and_wrong_ones_are_refused(tenant: str) -> None:
    rules = [
        {"prefix": "/docs/api/", "space": "api", "visibility": "public"},
        {"prefix": "/docs/", "space": "docs"},
        {"prefix": "/docs/", "space": "docs"},
    ]
    with tenant_tx(tenant) as tx:
        tenant_settings.change(tx, {"space_rules": rules}, now=utcnow())
        stored, _ = tenant_settings.read(tx)
    assert stored.space_rules == (SpaceRule("/docs/api/", "api", "public"), SpaceRule("/docs/", "docs", "private"))
    wrong: list[Any] = [
        {"prefix": "docs/", "space": "docs"},
        {"prefix": "/" + "x" * 200, "space": "docs"},
        {"prefix": "/a\nb", "space": "docs"},
        {"prefix": "/#/docs/", "space": "docs"},  # would be for the whole site
        {"prefix": "/?a=1", "space": "docs"},
        {"prefix": "/docs/../", "space": "docs"},
        {"prefix": "/docs/", "space": "no key"},
        {"prefix": "/docs/", "space": "docs", "visibility": "secret"},
        {"prefix": "/docs/", "space": "docs", "visibility": ["public"]},
        {"prefix": "/docs/", "space": "docs", "owner": "me"},
        {"prefix": ["/"], "space": "docs"},
        {"space": "docs"},
        "/docs/",
    ]
    for rule in wrong:
        with pytest.raises(Invalid, match="space_rules: at most 100 rules such as"):
            merge(TenantSettings(), {"space_rules": [rules[0], rule]})
    for too_many in (rules[:1] * 101, rules[0]):
        with pytest.raises(Invalid):
            merge(TenantSettings(), {"space_rules": too_many})


def test_a_change_of_another_version_is_stale(tenant: str) -> None:
    with tenant_tx(tenant) as tx:
        change = tenant_settings.change(tx, {"signup_open": True}, now=utcnow(), expected_version=0)
        assert (change.before.signup_open, change.after.signup_open, change.version) == (False, True, 1)
        with pytest.raises(Stale):
            tenant_settings.change(tx, {"signup_open": False}, now=utcnow(), expected_version=0)
        assert tenant_settings.read(tx) == (change.after, 1)


def test_recent_settings_change_with_the_commit(tenant: str, trusted_memory: None) -> None:
    assert not tenant_settings.recent(tenant).signup_open
    with tenant_tx(tenant) as tx:
        tenant_settings.change(tx, {"signup_open": True}, now=utcnow())
    assert tenant_settings.recent(tenant).signup_open


def test_recent_settings_of_a_transaction_that_is_rolled_back_are_not_kept(tenant: str, trusted_memory: None) -> None:
    def change_and_fail() -> None:
        with tenant_tx(tenant) as tx:
            tenant_settings.change(tx, {"signup_open": True}, now=utcnow())
            assert tenant_settings.recent(tenant).signup_open, "as this transaction sees them"
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        change_and_fail()
    assert not tenant_settings.recent(tenant).signup_open


@pytest.mark.parametrize(
    ("origin", "expected"),
    [
        ("https://wiki.example", True),
        ("http://localhost:8000", True),
        ("http://127.0.0.1", True),
        ("https://wiki.example/", False),
        ("https://Wiki.example", False),
        ("https://wiki.example:", False),
        ("https://user@wiki.example", False),
        ("https://wiki.example:99999", False),
        ("ftp://wiki.example", False),
        ("wiki.example", False),
        ("null", False),
        ("*", False),
        (None, False),
        (5, False),
    ],
)
def test_an_origin_is_as_browsers_send_it(origin: object, expected: bool) -> None:
    assert is_origin(origin) is expected


def test_only_what_changes_something_is_announced_to_other_processes(tenant: str) -> None:
    def announced() -> int:
        with tenant_tx(tenant) as tx:
            return tx.scalar(select(func.count()).select_from(CredentialChange)) or 0

    for value, expected in ((True, 1), (True, 0), (False, 1)):
        before = announced()
        with tenant_tx(tenant) as tx:
            tenant_settings.change(tx, {"public_names": value}, now=utcnow())
        assert announced() - before == expected
    before, ends = announced(), utcnow() + timedelta(hours=1)
    for _ in range(3):
        credentials.revoke_token(tenant, "a-token", expires_at=ends)
    assert announced() - before == 1
