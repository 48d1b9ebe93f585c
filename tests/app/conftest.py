"""What tests of the application share."""

from dataclasses import replace
from typing import Any

from flask import Flask
from flask.testing import FlaskClient

from app.settings import Settings
from app.web import connect, create_app, install_services

# By the settings that an application's hooks depend on: the others are those of its services, which are replaced.
_built: dict[tuple[str, str | None], Flask] = {}


def with_settings(settings: Settings, **changes: Any) -> FlaskClient:
    """A client of an application with these changes of the settings, until the next call."""
    changed = replace(settings, **changes)
    hooks = changed.public_url, changed.demo_secret
    if hooks not in _built:
        _built[hooks] = create_app(changed)
    else:
        connect(changed)
        install_services(_built[hooks], changed)
    return _built[hooks].test_client()
