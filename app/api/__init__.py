"""The HTTP API: one module for each noun."""

from flask import Flask

from app.api import (
    actions,
    beacon,
    corrections,
    credentials,
    docs,
    events,
    health,
    integrity,
    leaderboards,
    likes,
    live,
    logins,
    metrics,
    oauth,
    overview,
    pages,
    profiles,
    quest_rewards,
    quest_templates,
    quests,
    scores,
    settings,
    spaces,
    unknown_addresses,
    users,
    weights,
)
from app.api.blueprint import PlauditApi

# In the order of the documentation.
MODULES = (
    oauth,
    logins,
    users,
    profiles,
    credentials,
    settings,
    weights,
    pages,
    spaces,
    likes,
    events,
    beacon,
    unknown_addresses,
    leaderboards,
    overview,
    actions,
    scores,
    corrections,
    quests,
    quest_templates,
    quest_rewards,
    integrity,
    live,
    health,
    metrics,
)


def install(app: Flask) -> PlauditApi:
    """Register every blueprint, and publish the generated OpenAPI 3.1 document."""
    api = PlauditApi(app)
    for module in MODULES:
        api.register_blueprint(module.blueprint)
    docs.install(app, api)
    return api
