"""The HTTP API: one module for each noun."""

from flask import Flask

from app.api import credentials, docs, events, health, likes, logins, metrics, oauth, pages, settings, users
from app.api.blueprint import PlauditApi


def install(app: Flask) -> None:
    """Put every blueprint on the app, and publish what they declare as OpenAPI 3.1."""
    api = PlauditApi(app)
    for module in (oauth, logins, users, credentials, settings, pages, likes, events, health, metrics):
        api.register_blueprint(module.blueprint)
    oauth.install(app)
    docs.install(app, api)
