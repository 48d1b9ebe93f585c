"""What the live process creates once and its routes share."""

from dataclasses import dataclass

from flask import Flask, current_app

from app.http.services import KEY, Essentials
from app.live.hub import Hub


@dataclass(frozen=True)
class LiveServices(Essentials):
    hub: Hub


def live_services_of(app: Flask) -> LiveServices:
    services: LiveServices = app.extensions[KEY]
    return services


def live_services() -> LiveServices:
    return live_services_of(current_app)
