"""The demo tenant: its credentials are shown again at every start, and an admin's choice stays."""

import contextlib
from pathlib import Path

import pytest
from flask.testing import FlaskClient

from app.run import demo
from tenants import registry
from tenants import settings as tenant_settings
from tenants.db import owner_tx, tenant_tx, utcnow
from tenants.errors import NotFound
from tests.people import log_in, token_of


@pytest.fixture(autouse=True)
def no_demo(connected: None) -> None:
    """Of an earlier test."""
    delete_demo()


def delete_demo() -> None:
    with contextlib.suppress(NotFound), owner_tx() as tx:
        registry.mark_deleted(tx, demo.DEMO_TENANT, now=utcnow())


def test_the_credentials_are_shown_again_and_work(client: FlaskClient, tmp_path: Path) -> None:
    shown = demo.ensure(tmp_path)
    assert (tmp_path / "demo.json").stat().st_mode & 0o777 == 0o600
    assert demo.ensure(tmp_path) == shown
    assert log_in(client, "demo", shown["admin_username"], shown["admin_password"])["access_token"]
    assert token_of(client, shown["client_id"], shown["client_secret"])


@pytest.mark.parametrize("content", [None, "not JSON", '{"client_id": "of another database"}'])
def test_where_they_are_lost_new_ones_are_created(client: FlaskClient, content: str | None, tmp_path: Path) -> None:
    lost = demo.ensure(tmp_path)
    (tmp_path / "demo.json").unlink()
    if content is not None:
        (tmp_path / "demo.json").write_text(content)
    shown = demo.ensure(tmp_path)
    assert shown["client_id"] != lost["client_id"]
    assert token_of(client, shown["client_id"], shown["client_secret"])
    assert log_in(client, "demo", shown["admin_username"], shown["admin_password"])["access_token"]
    old = {"tenant": "demo", "username": lost["admin_username"], "password": lost["admin_password"]}
    assert client.post("/api/v1/auth/login", json=old).status_code == 401


def test_a_deleted_demo_begins_anew(tmp_path: Path) -> None:
    first = demo.ensure(tmp_path)
    delete_demo()
    assert demo.ensure(tmp_path)["client_id"] != first["client_id"]
    with owner_tx() as tx:
        assert registry.get(tx, demo.DEMO_TENANT).name == "Demo wiki"


def test_the_demo_opens_sign_up_unless_somebody_closed_it(connected: None, tmp_path: Path) -> None:
    def is_open() -> bool:
        with tenant_tx(demo.DEMO_TENANT) as tx:
            return tenant_settings.read(tx)[0].signup_open

    demo.ensure(tmp_path)
    assert is_open()
    with tenant_tx(demo.DEMO_TENANT) as tx:
        tenant_settings.change(tx, {"signup_open": False}, now=utcnow())
    demo.ensure(tmp_path)
    assert not is_open()
