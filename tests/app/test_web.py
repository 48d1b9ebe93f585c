"""The WSGI application: how it is put together."""

from dataclasses import replace

import pytest
from flask import Flask
from flask.testing import FlaskClient

from app.http.exports import MAX_EXPORTS, Export, TooManyExports
from app.http.services import services_of
from app.settings import Settings, SettingsError
from app.web import create_app, install_services, share_of_threads
from tenants import shares
from tenants.shares import TenantBusy


def test_an_odd_address_is_never_redirected(client: FlaskClient) -> None:
    for path in ("/api//v1/me", "//api/v1/me", "/api/v1/me/", "/health//live"):
        answer = client.get(path, base_url="http://evil.example")
        assert answer.status_code in {401, 404}, path
        assert "Location" not in answer.headers


def test_without_a_secret_key_nothing_starts_and_the_error_says_so(settings: Settings) -> None:
    with pytest.raises(SettingsError, match="PLAUDIT_SECRET_KEY"):
        create_app(replace(settings, secret_key=None))


def test_json_is_strict_and_shows_what_json_has_not_as_text(app: Flask) -> None:
    assert app.json.dumps({"error": ValueError("no")}) == '{"error":"no"}'
    for text in ("NaN", "[1,]", '"\\ud800"'):
        with pytest.raises(ValueError, match="line 1"):
            app.json.loads(text)


def test_with_new_services_nothing_of_the_old_ones_is_left(app: Flask, settings: Settings) -> None:
    def begin(tenant: str) -> Export:
        return services_of(app).exports.begin(tenant, lambda: iter(()))

    running = [begin(f"tenant-{number}") for number in range(MAX_EXPORTS)]
    with pytest.raises(TooManyExports):
        begin("wiki")
    install_services(app, settings)
    begin("wiki").close()
    for export in running:
        export.close()


def test_one_tenant_gets_no_more_than_three_quarters_of_the_threads(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shares, "WAIT_ALONE_S", 0)
    monkeypatch.setattr(shares, "WAIT_S", 0)
    share = share_of_threads(replace(settings, web_threads=8))
    for _ in range(6):
        share.acquire("noisy", "ada")
    with pytest.raises(TenantBusy):
        share.acquire("noisy", "ada")
    share.acquire("quiet", "bob")
