import pytest

from tests.analytics.quests.questing import World


@pytest.fixture
def world(tenant: str) -> World:
    return World(tenant)
