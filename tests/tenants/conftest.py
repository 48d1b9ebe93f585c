"""What tests of tenants share."""

import pytest

from tenants import liveness
from tenants.credential_feed import boottime
from tests.service import eventually


@pytest.fixture
def trusted_memory(connected: None) -> None:
    """This process reads the feed of credential changes, and so answers from memory."""
    eventually(lambda: liveness._is_trusted(boottime()))
