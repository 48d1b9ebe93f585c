"""The HTTP API: one module for each noun."""

from flask import Flask
from werkzeug.routing.exceptions import WebsocketMismatch

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
    personal_data,
    profiles,
    quest_rewards,
    quest_templates,
    quests,
    scores,
    settings,
    spaces,
    static_tokens,
    unknown_addresses,
    user_sessions,
    users,
    weights,
)
from app.api.blueprint import PlauditApi

# In the order of the documentation.
MODULES = (
    oauth,
    logins,
    users,
    user_sessions,
    personal_data,
    profiles,
    credentials,
    static_tokens,
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
    app.register_error_handler(WebsocketMismatch, live.answer_upgrade)
    for name, schema in events.event_schemas().items():
        api.spec.components.schema(name, schema)
    api.spec.components.schema("LiveMessage", schema=live.LiveMessage)
    docs.install(app, api)
    return api
