"""A process that answers from memory whether sessions are valid, as the web processes do: told what to do by lines.

Without HTTP before it, so that a test decides which process is asked, and asks at the very moment it wants to.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Self
from uuid import UUID

from app.settings import Settings
from app.web import connect
from tenants import liveness, logs, sessions
from tenants.credential_feed import boottime
from tenants.db import tenant_tx, utcnow

ROOT = Path(__file__).parents[1]


class Remembering:
    """One such process, seen from the test."""

    def __init__(self, settings: Settings, *, redis_url: str) -> None:
        addresses = {
            "PLAUDIT_SERVICE_DATABASE_URL": settings.service_database_url or settings.database_url or "",
            "REDIS_URL": redis_url,
            "PLAUDIT_SECRET_KEY": settings.secret_key or "",
        }
        env = {name: value for name, value in os.environ.items() if name != "DATABASE_URL"} | addresses
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.remembering"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env=env,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()

    def tell(self, what: str, tenant: str, session: str = "") -> None:
        """Begin a call, without waiting for its answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([what, tenant, session]) + "\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

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


def main() -> None:
    logs.configure(service="web", log_format="json", stream=sys.stderr)
    connect(Settings.from_env())
    for line in sys.stdin:
        what, tenant, session = json.loads(line)
        match what:
            case "is_valid":
                answer: Any = sessions.rights_of(tenant, session) is not None
            case "remembers":
                answer = remembers(tenant, session)
            case "revoke":
                answer = revoke(tenant, session)
        print(json.dumps(answer), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
