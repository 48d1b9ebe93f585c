"""What tests of the application share."""

from dataclasses import replace
from typing import Any

from flask.testing import FlaskClient

from app.settings import Settings
from app.web import create_app


def with_settings(settings: Settings, **changes: Any) -> FlaskClient:
    """A client of an application with these changes of the settings."""
    return create_app(replace(settings, **changes)).test_client()
