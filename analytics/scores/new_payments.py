"""Payments of a commit before they are written, and the call of `record_payments` that writes them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import orjson

from analytics.metrics import POINTS
from analytics.scores.actions import ActionClaim, Payment, Verification
from analytics.scores.audit import MAX_AGENT_CHARS
from analytics.windows import hour_of
from tenants.db import array
from tenants.throttle import State

# A statement, and a value for each `%s`.
Call = tuple[str, Sequence[Any]]


@dataclass
class NewPayment:
    claim: ActionClaim
    user_id: UUID
    event_id: UUID
    delta: int
    score: int
    once_key: str | None
    # The state of the user's rate limit; None: it does not apply.
    limit: State | None
    rank: int | None = None

    @property
    def shows_rank(self) -> bool:
        """A batch's answer has no ranks."""
        return self.claim.verification is not Verification.CLIENT

    def payment(self, *, is_replay: bool) -> Payment:
        limit = None if is_replay else self.limit
        return Payment(
            self.score, self.delta, self.rank, self.event_id, is_replay=is_replay, limit=limit, user_id=self.user_id
        )


def recording(tenant_id: str, payments: Sequence[NewPayment], *, now: datetime, at: datetime) -> Call:
    """Writes these; `at` is when they are paid by the ledger. False, and nothing is written, if one of the sources was
    paid to another user meanwhile."""
    claims = [new.claim for new in payments]
    tokens = [claim.token for claim in claims if claim.token is not None]
    return _RECORD, (
        tenant_id,
        POINTS.account,
        now,
        at,
        hour_of(at),
        array(new.user_id for new in payments),
        [claim.source for claim in claims],
        [claim.action_type for claim in claims],
        array(new.delta for new in payments),
        array(new.score for new in payments),
        array("NULL" if new.rank is None else new.rank for new in payments),
        array(new.event_id for new in payments),
        [claim.payload_hash for claim in claims],
        [new.once_key for new in payments],
        array(claim.verification.value for claim in claims),
        [claim.client_time for claim in claims],
        [claim.object for claim in claims],
        [claim.ip for claim in claims],
        [(claim.agent or "")[:MAX_AGENT_CHARS] or None for claim in claims],
        [_json(claim.client_info) for claim in claims],
        [_json(claim.metadata) for claim in claims],
        [token.id for token in tokens],
        [token.expires_at for token in tokens],
    )


def _json(value: Mapping[str, Any] | None) -> str | None:
    return orjson.dumps(value).decode() if value else None


# A function, because its plans are cached; called without SQLAlchemy's compilation, which costs as much as it does.
_RECORD = """
    SELECT record_payments(
        %s, %s, %s::timestamptz, %s::timestamptz, %s::timestamptz, %s::uuid[], %s::text[], %s::text[], %s::bigint[],
        %s::bigint[], %s::bigint[], %s::uuid[], %s::bytea[], %s::text[], %s::text[], %s::timestamptz[], %s::text[],
        %s::text[], %s::text[], %s::text[], %s::text[], %s::text[], %s::timestamptz[])
"""
