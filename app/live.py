"""The process for sockets and Server-Sent Events, apart from the API so that open sockets never take its capacity."""

from flask import Flask

from app.api import docs, health, metrics
from app.api.blueprint import PlauditApi
from app.settings import Settings
from app.web import connect, new_flask


def create_live_app(settings: Settings | None = None) -> Flask:
    """The application that `plaudit live` serves (gunicorn calls it in its worker, after gevent has patched)."""
    settings = settings or Settings.from_env()
    connect(settings)
    app = new_flask(settings)
    api = PlauditApi(app)
    for blueprint in (health.blueprint, metrics.blueprint):
        api.register_blueprint(blueprint)
    docs.declare_static(app)
    return app
