"""Corrections: an admin adds to an account of a user, or takes from it, and says why.

A correction is a ledger entry like any other, so hours, boards and checks follow. It is no payment: it counts for no
daily cap or limit, no rate, and not for the rule about points in an hour; and no reversal takes it back.
"""

import hashlib
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID, uuid4

import orjson

from analytics.metrics import Metric
from analytics.scores import ledger, sources
from analytics.scores.actions import Verification
from analytics.scores.audit import ActionEvent
from tenants import users
from tenants.db import Tx
from tenants.errors import Conflict, Invalid

# What the audit has in the place of an action's type.
CORRECTION = "correction"
MAX_DELTA = 2**53
MIN_REASON_CHARS, MAX_REASON_CHARS = 3, 500


class BelowZero(Conflict):
    code = "below_zero"
    title = "A balance cannot be below 0"


@dataclass(frozen=True)
class Corrected:
    """The entry that was added, and the balance after it."""

    entry_id: int
    account: str
    delta: int
    score: int

    def logged(self) -> dict[str, int | str]:
        """For the log: without the reason, which may be personal, and erasure does not reach logs."""
        return {"entry_id": self.entry_id, "account": self.account, "delta": self.delta}


def correct(tx: Tx, user_id: UUID, metric: Metric, delta: int, *, reason: str, by: str, now: datetime) -> Corrected:
    """Add an entry to the metric's account. `by`: the admin, for the audit."""
    reason = reason.strip()
    _check(delta, reason)
    user = ledger.lock_user(tx, user_id, metric)
    if user is None:
        raise users.UserNotFound
    if user.balance + delta < 0:
        raise BelowZero(f"The user has {user.balance} {metric.account}, and a balance cannot be below 0")
    source, event_id = sources.of_correction(uuid4()), uuid4()
    payload = {"account": metric.account, "delta": delta, "reason": reason, "by": by}
    payload_hash = hashlib.sha256(orjson.dumps(payload, option=orjson.OPT_SORT_KEYS)).digest()
    corrected = ledger.add_entry(
        tx,
        user,
        metric,
        source=source,
        delta=delta,
        at=now,
        payload_hash=payload_hash,
        reason=reason,
        event_id=event_id,
    )
    tx.add(
        ActionEvent(
            tenant_id=tx.tenant,
            received_at=now,
            id=event_id,
            user_id=user_id,
            action_type=CORRECTION,
            source=source,
            payload_hash=payload_hash,
            verification=Verification.ADMIN.value,
            points=delta,
            metadata_={"account": metric.account, "reason": reason, "by": by},
        )
    )
    tx.flush()
    assert corrected.entry_id is not None  # noqa: S101  its source is new
    return Corrected(corrected.entry_id, metric.account, delta, corrected.balance)


def _check(delta: int, reason: str) -> None:
    errors: dict[str, str] = {}
    if not 0 < abs(delta) <= MAX_DELTA:
        errors["delta"] = "a whole number up to 2^53, above or below 0"
    if not MIN_REASON_CHARS <= len(reason) <= MAX_REASON_CHARS:
        errors["reason"] = f"{MIN_REASON_CHARS} to {MAX_REASON_CHARS} characters"
    if errors:
        raise Invalid.fields(errors)
