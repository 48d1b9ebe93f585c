"""The WSGI entry point for any server: `wsgi:application`."""

from app.settings import Settings
from app.web import create_app

application = create_app(Settings.from_env())
