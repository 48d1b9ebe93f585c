"""A process that answers from memory whether sessions are valid, as the web processes do: told what to do by messages.

Without HTTP before it, so that a test decides which process is asked, and asks at the very moment it wants to.
"""

import os
import sys
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any, Self
from uuid import UUID

from app.settings import Settings
from app.web import connect
from tenants import liveness, logs, sessions
from tenants.credential_feed import boottime
from tenants.db import tenant_tx, utcnow
from tests.forking import forking


class Remembering:
    """One such process, seen from the test."""

    def __init__(self, settings: Settings, *, redis_url: str) -> None:
        self._calls, its_calls = forking.Pipe()
        own = replace(
            settings,
            database_url=None if settings.service_database_url else settings.database_url,
            redis_url=redis_url,
            queue_redis_url=redis_url,
        )
        self.process = forking.Process(target=answer_calls, args=(own, its_calls), daemon=True)
        self.process.start()
        its_calls.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.process.kill()
        self.process.join()
        self._calls.close()

    def send_signal(self, number: int) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    def tell(self, what: str, tenant: str, session: str = "") -> None:
        """Begin a call, without waiting for its answer."""
        self._calls.send((what, tenant, session))

    def answer(self) -> Any:
        return self._calls.recv()

    def is_valid(self, tenant: str, session: str) -> bool:
        self.tell("is_valid", tenant, session)
        return bool(self.answer())

    def remembers(self, tenant: str, session: str) -> bool:
        """Whether it is asked without reading PostgreSQL."""
        self.tell("remembers", tenant, session)
        return bool(self.answer())

    def revoke(self, tenant: str, session: str) -> float:
        """End the session; returns how long the process waited for the others after its commit."""
        self.tell("revoke", tenant, session)
        return float(self.answer())


def remembers(tenant: str, session: str) -> bool:
    is_kept = (tenant, f"session:{session}") in liveness._answers._answers
    return sessions.rights_of(tenant, session) is not None and is_kept and liveness._is_trusted(boottime())


def revoke(tenant: str, session: str) -> float:
    committed_at: list[float] = []
    with tenant_tx(tenant) as tx:
        tx.after_commit(lambda: committed_at.append(boottime()))
        assert sessions.revoke(tx, UUID(session), now=utcnow())
    return boottime() - committed_at[0]


def answer_calls(settings: Settings, calls: Connection) -> None:
    logs.configure(service="web", log_format="json", stream=sys.stderr)
    connect(settings)
    while True:
        what, tenant, session = calls.recv()
        match what:
            case "is_valid":
                answer: Any = sessions.rights_of(tenant, session) is not None
            case "remembers":
                answer = remembers(tenant, session)
            case "revoke":
                answer = revoke(tenant, session)
        calls.send(answer)
