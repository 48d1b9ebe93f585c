import pytest
from flask.testing import FlaskClient

from tests.analytics.conftest import make_page
from tests.beacons import ORIGIN
from tests.people import Caller, client_of


@pytest.fixture
def admin(client: FlaskClient, tenant: str) -> Caller:
    """A tenant app with a page."""
    caller = client_of(client, tenant)
    make_page(caller, "home")
    return caller


@pytest.fixture
def key(admin: Caller) -> str:
    """A publishable key for ORIGIN."""
    return str(admin("POST", "/api/v1/keys", json={"origins": [ORIGIN]}).get_json()["key"])
