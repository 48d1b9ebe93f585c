"""The HTTP API: one module for each noun."""

from flask import Flask

from app.api import docs, health, metrics
from app.api.blueprint import PlauditApi


def install(app: Flask) -> None:
    """Put every blueprint on the app, and publish what they declare as OpenAPI 3.1."""
    api = PlauditApi(app)
    for blueprint in (health.blueprint, metrics.blueprint):
        api.register_blueprint(blueprint)
    docs.install(app, api)
