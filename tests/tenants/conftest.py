"""The fixtures that tests of tenants share with those of analytics."""

from tests.analytics.conftest import no_redis

__all__ = ["no_redis"]
