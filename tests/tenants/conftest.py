"""The fixtures that tests of tenants share with those of analytics."""

import pytest

from tenants import liveness
from tenants.credential_feed import boottime
from tests.analytics.conftest import no_redis
from tests.service import eventually

__all__ = ["no_redis"]


@pytest.fixture
def trusted_memory(connected: None) -> None:
    """This process reads the feed of credential changes, and so answers from memory."""
    eventually(lambda: liveness._is_trusted(boottime()))
