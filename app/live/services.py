"""What the live process makes once and its routes share."""

from dataclasses import dataclass

from flask import Flask, current_app

from app.http.services import KEY, Essentials
from app.live.hub import Hub


@dataclass(frozen=True)
class LiveServices(Essentials):
    hub: Hub


def live_services_of(app: Flask) -> LiveServices:
    found: LiveServices = app.extensions[KEY]
    return found


def live_services() -> LiveServices:
    return live_services_of(current_app)
