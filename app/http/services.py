"""What a process creates once and its routes share: created by `create_app`, read by `services()`."""

import threading
from dataclasses import dataclass, field

from authlib.integrations.flask_oauth2 import AuthorizationServer
from flask import Flask, current_app

from analytics.ingest.group_commit import GroupCommit
from analytics.ingest.visitors import Visitors
from analytics.scores.tokens import ActionTokens
from analytics.wake import Waker
from app.http.answer_cache import BoardAnswerCache
from app.http.exports import Exports
from app.settings import Settings
from tenants.reader_signatures import ReaderSignatures
from tenants.shares import TenantShare
from tenants.signing import Signer

KEY = "plaudit"


@dataclass(frozen=True)
class Essentials:
    """What every process that answers requests has."""

    settings: Settings
    signer: Signer
    # Set once the process was told to stop: it is not ready then, and answers what comes nevertheless.
    draining: threading.Event = field(default_factory=threading.Event, kw_only=True)


@dataclass(frozen=True)
class Services(Essentials):
    """What the API and the dashboard have."""

    ingest: GroupCommit
    waker: Waker
    # How many of this process's threads a tenant and each of its callers may use at once; and callers without a tenant.
    threads: TenantShare
    nobodys_threads: TenantShare
    action_tokens: ActionTokens
    boards: BoardAnswerCache
    exports: Exports
    visitors: Visitors
    reader_signatures: ReaderSignatures
    oauth: AuthorizationServer


def install(app: Flask, services: Essentials) -> None:
    app.extensions[KEY] = services


def services_of(app: Flask) -> Services:
    installed: Services = app.extensions[KEY]
    return installed


def services() -> Services:
    return services_of(current_app)


def essentials() -> Essentials:
    """What routes may use that exist in both the API and the live process."""
    installed: Essentials = current_app.extensions[KEY]
    return installed
