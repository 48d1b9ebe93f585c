"""What tests of scores share."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import text

from analytics.scores import ledger, payments
from analytics.scores.actions import ActionClaim, Payment
from tenants import settings as tenant_settings
from tenants.db import Tx, tenant_tx, utcnow
from tenants.errors import DomainError
from tests.people import Caller
from tests.service import eventually

UPDATE, CLAIM = "/api/v1/scores/update", "/api/v1/scores"


def claim_of(**changes: Any) -> dict[str, Any]:
    return {"actionId": str(uuid4()), "actionType": "post", "timestamp": utcnow().isoformat(), **changes}


def token_for(admin: Caller, user: str, **more: Any) -> str:
    answer = admin("POST", "/api/v1/action-tokens", json={"user": user, "action_type": "answer", **more})
    assert answer.status_code == 201, answer.text
    return str(answer.get_json()["action_token"])


def entries(tenant: str, user: str) -> list[tuple[int, int, int]]:
    with tenant_tx(tenant) as tx:
        rows = tx.execute(
            text("SELECT previous, delta, score FROM score_ledger WHERE user_id = :u ORDER BY id"), {"u": user}
        )
        return [(row.previous, row.delta, row.score) for row in rows]


def send_until_admitted(caller: Caller, method: str, path: str, body: dict[str, Any]) -> tuple[int, Any]:
    """The status and body of the answer. On a busy machine fifty threads may get 429 `tenant_busy`: send again."""

    def send() -> tuple[int, Any] | None:
        answer = caller(method, path, json=body)
        is_busy = answer.status_code == 429 and answer.get_json()["code"] == "tenant_busy"
        return None if is_busy else (answer.status_code, answer.get_json())

    status, answered = eventually(send)
    return int(status), answered


def at_once(times: int, what: Callable[[], Any]) -> list[Any]:
    gate = threading.Barrier(times)

    def run(_: int) -> Any:
        gate.wait(20)
        return what()

    with ThreadPoolExecutor(times) as pool:
        return list(pool.map(run, range(times)))


def pay(tenant: str, user: str, points: int, at: Any) -> None:
    with tenant_tx(tenant) as tx:
        user_row = ledger.lock_user(tx, UUID(user))
        assert user_row is not None
        ledger.add_entry(tx, user_row, source=f"test:{uuid4()}", delta=points, at=at, payload_hash=b"")


def pay_one(tx: Tx, claim: ActionClaim, *, now: datetime) -> Payment:
    """Pay a claim, or raise why it is refused."""
    settings = tenant_settings.read(tx)[0]
    (outcome,) = payments.pay_all(tx, [claim], settings, room=0, now=now).payments
    if isinstance(outcome, DomainError):
        raise outcome
    return outcome
