"""Paying for actions, each once: all claims of a commit together, in a few statements however many they are.

In one transaction: lock the users, read what decides about their claims, decide about each in turn, and write what is
paid: ledger, audit, scores, hours, used tokens, outbox. A replay is answered before any limit, as the first time.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import orjson
from prometheus_client import Counter
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError, IntegrityError

from analytics import outbox, user_changes
from analytics.boards import user_numbers
from analytics.metrics import POINTS
from analytics.outbox import Kind
from analytics.scores import integrity, ledger, limits
from analytics.scores.actions import (
    ActionClaim,
    Done,
    PayloadDiffers,
    Payment,
    UserSuspended,
    Verification,
    midnight,
    normal_object,
    once_key,
    points_for,
)
from analytics.scores.audit import MAX_AGENT_CHARS
from analytics.scores.catalog import Terms
from analytics.scores.integrity import Rule
from analytics.scores.ledger import LockedUser
from analytics.windows import hour_of
from tenants import users
from tenants.db import Tx
from tenants.errors import DomainError, Unavailable
from tenants.settings import TenantSettings
from tenants.throttle import TooMany

# In a transaction's `info`: how many payments it has made so far.
PENDING = "payments"
MAX_TRIES = 3

PAID = Counter("plaudit_points_paid_total", "Points paid for actions.", ["tenant"])


class Contended(Unavailable):
    code = "overloaded"
    title = "Others are claiming the same: try again"


def pay(tx: Tx, claim: ActionClaim, settings: TenantSettings, *, now: datetime) -> Payment:
    """Pay for an action, once. Changes nothing when it raises."""
    (outcome,) = pay_all(tx, [claim], settings, now=now)
    if isinstance(outcome, DomainError):
        raise outcome
    return outcome


def pay_all(
    tx: Tx, claims: Sequence[ActionClaim], settings: TenantSettings, *, now: datetime
) -> list[Payment | DomainError]:
    """Pay or refuse each by itself, in their order."""
    if not claims:
        return []
    for _ in range(MAX_TRIES):
        try:
            with _savepoint(tx):
                return _try_to_pay(tx, claims, settings, now=now)
        except IntegrityError:  # another transaction has just paid one of the sources to another user
            continue
    raise Contended


@contextmanager
def _savepoint(tx: Tx) -> Iterator[None]:
    """A part of the transaction that an error of the database undoes alone."""
    tx.raw.exec_driver_sql("SAVEPOINT payments")
    try:
        yield
    except DBAPIError:
        tx.raw.exec_driver_sql("ROLLBACK TO SAVEPOINT payments")
        raise
    tx.raw.exec_driver_sql("RELEASE SAVEPOINT payments")


def _try_to_pay(
    tx: Tx, claims: Sequence[ActionClaim], settings: TenantSettings, *, now: datetime
) -> list[Payment | DomainError]:
    cashier = _Cashier(tx, claims, settings, now=now)
    outcomes = [cashier.decide(place) for place in range(len(claims))]
    cashier.write()
    return outcomes


@dataclass
class _Account:
    """A locked user as the next claim finds it: payments of this commit are added."""

    user: LockedUser
    score: int
    is_suspended: bool
    updates: int
    oldest_update_at: datetime | None
    points_in_last_hour: int
    done: dict[str, Done] = field(default_factory=dict)
    # Users who get nothing more in this commit, whatever they claim.
    refused: DomainError | None = None


@dataclass(frozen=True)
class _Paid:
    """A payment to be written."""

    claim: ActionClaim
    event_id: UUID
    delta: int
    score: int
    rank: int | None
    once_key: str | None


class _Cashier:
    """The claims of one commit: what decides about them, and what was decided so far."""

    def __init__(self, tx: Tx, claims: Sequence[ActionClaim], settings: TenantSettings, *, now: datetime) -> None:
        self.tx = tx
        self.claims = claims
        self.settings = settings
        self.now = now
        # The ledger's times are in milliseconds, as everything that is shown.
        self.at = now.replace(microsecond=now.microsecond // 1000 * 1000)
        self.paid: list[_Paid] = []
        self.accounts: dict[UUID, _Account] = {}
        self.paid_sources: dict[str, tuple[bytes, Payment]] = {}
        self.once_keys: set[str] = set()
        self.onces = [once_key(claim, normal_object(claim.object)) for claim in claims]
        locked = ledger.lock_users(tx, {claim.user_id for claim in claims})
        self.facts = self._read_facts()
        for claim, row in zip(claims, self.facts, strict=True):
            self._open_account(locked.get(claim.user_id), claim, row)

    def _read_facts(self) -> Sequence[Any]:
        """For each claim everything it depends on: an earlier payment, the terms, and what the user was paid lately."""
        rows = self.tx.run(
            _FACTS,
            {
                "tenant": self.tx.tenant,
                "users": [claim.user_id for claim in self.claims],
                "actions": [claim.action_type for claim in self.claims],
                "sources": [claim.source for claim in self.claims],
                "onces": self.onces,
                "as_written": [once_key(claim, claim.object) for claim in self.claims],  # as older entries have it
                "today": midnight(self.now),
                "hour_ago": self.now - integrity.WINDOW,
                "minute_ago": self.now - timedelta(seconds=limits.WINDOW_S),
                "rule": Rule.POINTS_PER_HOUR.value,
            },
        )
        return rows.all()

    def _open_account(self, user: LockedUser | None, claim: ActionClaim, row: Any) -> None:
        if user is None:
            return
        account = self.accounts.get(user.id)
        if account is None:
            account = self.accounts[user.id] = _Account(
                user, user.score, user.is_suspended, row.updates, row.oldest_update_at, row.points_in_last_hour
            )
        account.done.setdefault(claim.action_type, Done(row.times_today, row.points_today, row.last_at))

    def decide(self, place: int) -> Payment | DomainError:
        claim, row = self.claims[place], self.facts[place]
        try:
            return self._replay(claim, row) or self._pay(claim, row, self.onces[place])
        except DomainError as refused:
            account = self.accounts.get(claim.user_id)
            if account is not None and isinstance(refused, TooMany | UserSuspended | limits.TooBusy):
                account.refused = refused
            return refused

    def _replay(self, claim: ActionClaim, row: Any) -> Payment | None:
        payload_hash, payment = self.paid_sources.get(claim.source, (None, None))
        if row.paid_hash is not None:
            payload_hash = bytes(row.paid_hash)
            payment = Payment(row.paid_score, row.paid_delta, row.paid_rank, row.paid_event_id, is_replay=True)
        if payment is not None and payload_hash != claim.payload_hash:
            raise PayloadDiffers
        return payment

    def _pay(self, claim: ActionClaim, row: Any, key: str) -> Payment:
        account = self.accounts.get(claim.user_id)
        if account is None or account.is_suspended:
            raise UserSuspended
        if account.refused is not None:
            raise account.refused
        done, was_done = account.done[claim.action_type], row.was_done or key in self.once_keys
        points, terms = points_for(claim, _terms(row), done, was_done=was_done, now=self.now)
        if account.score + points > ledger.MAX_SCORE:
            raise ledger.TooHigh
        state = limits.require_user(
            per_minute=self.settings.limits.score_updates_per_minute,
            updates=account.updates,
            oldest_at=account.oldest_update_at,
            now=self.now,
        )
        limits.breakers.require(
            self.tx.tenant,
            max_per_minute=self.settings.limits.score_spike_per_minute,
            pending=int(self.tx.info.get(PENDING, 0)) + len(self.paid),
        )
        account.score += points
        account.updates += 1
        account.oldest_update_at = account.oldest_update_at or self.at
        account.points_in_last_hour += points
        done.times_today, done.points_today, done.last_at = done.times_today + 1, done.points_today + points, self.at
        answers_rank = claim.verification is not Verification.CLIENT  # a batch's answer has no ranks
        rank = user_numbers.rank_for(self.tx, account.score) if answers_rank else None
        if terms.once_per_object:
            self.once_keys.add(key)
        paid = _Paid(claim, uuid4(), points, account.score, rank, key if terms.once_per_object else None)
        self.paid.append(paid)
        self._flag_if_suspicious(account)
        payment = Payment(paid.score, points, rank, paid.event_id, is_replay=False, limit=state)
        again = Payment(paid.score, points, rank, paid.event_id, is_replay=True)
        self.paid_sources[claim.source] = claim.payload_hash, again
        return payment

    def _flag_if_suspicious(self, account: _Account) -> None:
        rule = self.settings.integrity
        if account.points_in_last_hour <= rule.points_per_hour:
            return
        is_raised = integrity.raise_flag(
            self.tx,
            account.user.id,
            Rule.POINTS_PER_HOUR,
            {"points": account.points_in_last_hour, "most": rule.points_per_hour},
            state=integrity.State.SUSPENDED if rule.suspend_automatically else integrity.State.OPEN,
            now=self.now,
        )
        if is_raised and rule.suspend_automatically:
            user_changes.change_user(self.tx, users.get(self.tx, account.user.id), {"suspended": True}, now=self.now)
            account.is_suspended = True

    def write(self) -> None:
        """Write what is paid."""
        if not self.paid:
            return
        self.tx.run(_WRITE, self._columns())
        outbox.mark_stale(self.tx, Kind.USER, {str(paid.claim.user_id) for paid in self.paid})
        self.tx.info[PENDING] = int(self.tx.info.get(PENDING, 0)) + len(self.paid)
        self.tx.after_commit(partial(_count_payments, self.tx.tenant, [paid.delta for paid in self.paid]))

    def _columns(self) -> dict[str, Any]:
        claims = [paid.claim for paid in self.paid]
        tokens = [claim.token for claim in claims if claim.token is not None]
        return {
            "tenant": self.tx.tenant,
            "metric": POINTS.name,
            "now": self.now,
            "at": self.at,
            "hour": hour_of(self.at),
            "users": [claim.user_id for claim in claims],
            "sources": [claim.source for claim in claims],
            "actions": [claim.action_type for claim in claims],
            "deltas": [paid.delta for paid in self.paid],
            "scores": [paid.score for paid in self.paid],
            "ranks": [paid.rank for paid in self.paid],
            "events": [paid.event_id for paid in self.paid],
            "hashes": [claim.payload_hash for claim in claims],
            "onces": [paid.once_key for paid in self.paid],
            "verifications": [claim.verification.value for claim in claims],
            "client_times": [claim.client_time for claim in claims],
            "objects": [claim.object for claim in claims],
            "ips": [claim.ip for claim in claims],
            "agents": [(claim.agent or "")[:MAX_AGENT_CHARS] or None for claim in claims],
            "client_infos": [_json(claim.client_info) for claim in claims],
            "metadata": [_json(claim.metadata) for claim in claims],
            "tokens": [token.id for token in tokens],
            "tokens_expire": [token.expires_at for token in tokens],
        }


def _terms(row: Any) -> Terms | None:
    """The catalog's terms; None: it does not know the action."""
    if row.points is None:
        return None
    return Terms(
        row.points,
        row.daily_cap,
        row.daily_limit,
        row.cooldown_s,
        once_per_object=row.once_per_object,
        requires_token=row.requires_token,
        enabled=row.enabled,
    )


def _count_payments(tenant_id: str, points: Sequence[int]) -> None:
    PAID.labels(tenant_id).inc(sum(points))
    for _ in points:
        limits.breakers.passed(tenant_id)


def _json(value: Mapping[str, Any] | None) -> str | None:
    return orjson.dumps(value).decode() if value else None


_FACTS = text("""
    SELECT e.score AS paid_score, e.delta AS paid_delta, e.rank AS paid_rank, e.event_id AS paid_event_id,
           e.payload_hash AS paid_hash,
           a.points, a.daily_cap, a.daily_limit, a.cooldown_s, a.once_per_object, a.requires_token, a.enabled,
           d.times_today, d.points_today,
           (SELECT max(at) FROM score_ledger WHERE tenant_id = :tenant AND user_id = c.user_id
            AND action_type = c.action AND reverses IS NULL) AS last_at,
           EXISTS (SELECT FROM score_ledger WHERE tenant_id = :tenant
            AND once_key IN (c.once, c.as_written)) AS was_done,
           (SELECT COALESCE(sum(CASE WHEN l.reverses IS NULL THEN l.delta ELSE (
                SELECT l.delta FROM score_ledger o  -- reversing an older payment gives no room now
                WHERE o.tenant_id = :tenant AND o.id = l.reverses AND o.at > f.since) END), 0)::bigint
            FROM score_ledger l WHERE l.tenant_id = :tenant AND l.user_id = c.user_id AND l.at > f.since
           ) AS points_in_last_hour,
           u.updates, u.oldest_update_at
    FROM unnest(CAST(:users AS uuid[]), CAST(:actions AS text[]), CAST(:sources AS text[]), CAST(:onces AS text[]),
                CAST(:as_written AS text[])) WITH ORDINALITY AS c(user_id, action, source, once, as_written, place)
    LEFT JOIN score_ledger e ON e.tenant_id = :tenant AND e.source = c.source
    LEFT JOIN action_catalog a ON a.tenant_id = :tenant AND a.type = c.action
    CROSS JOIN LATERAL (
        SELECT GREATEST(CAST(:hour_ago AS timestamptz), max(resolved_at)) AS since FROM integrity_flags
        WHERE tenant_id = :tenant AND user_id = c.user_id AND rule = :rule AND state = 'dismissed') f
    CROSS JOIN LATERAL (
        SELECT count(*) AS updates, min(at) AS oldest_update_at FROM score_ledger
        WHERE tenant_id = :tenant AND user_id = c.user_id AND at > :minute_ago AND reverses IS NULL) u
    -- A payment of today that was taken back still counts for the day: a reversal gives no room to do it again.
    CROSS JOIN LATERAL (
        SELECT count(*) AS times_today, COALESCE(sum(delta), 0)::bigint AS points_today FROM score_ledger
        WHERE tenant_id = :tenant AND user_id = c.user_id AND action_type = c.action AND at >= :today
          AND reverses IS NULL) d
    ORDER BY c.place
""")

# One statement: the entries, the scores they make, the hours they are in, the audit, and the tokens they used up.
_WRITE = text("""
    WITH paid AS MATERIALIZED (
        SELECT * FROM unnest(
            CAST(:users AS uuid[]), CAST(:sources AS text[]), CAST(:actions AS text[]), CAST(:deltas AS bigint[]),
            CAST(:scores AS bigint[]), CAST(:ranks AS bigint[]), CAST(:events AS uuid[]), CAST(:hashes AS bytea[]),
            CAST(:onces AS text[]), CAST(:verifications AS text[]), CAST(:client_times AS timestamptz[]),
            CAST(:objects AS text[]), CAST(:ips AS text[]), CAST(:agents AS text[]), CAST(:client_infos AS text[]),
            CAST(:metadata AS text[])
        ) WITH ORDINALITY AS p(user_id, source, action_type, delta, score, rank, event_id, payload_hash, once_key,
                               verification, client_time, object, ip, agent, client_info, metadata, place)
    ), entry AS (
        INSERT INTO score_ledger (tenant_id, user_id, source, metric, action_type, delta, previous, score, rank, at,
                                  event_id, payload_hash, once_key)
        SELECT t.id, p.user_id, p.source, :metric, p.action_type, p.delta, p.score - p.delta, p.score, p.rank,
               CAST(:at AS timestamptz), p.event_id, p.payload_hash, p.once_key
        FROM tenants t CROSS JOIN paid p WHERE t.id = :tenant ORDER BY p.place
    ), hour AS (
        INSERT INTO user_points_hour AS h (tenant_id, user_id, metric, bucket_hour, points, last_at)
        SELECT t.id, p.user_id, :metric, CAST(:hour AS timestamptz), sum(p.delta), CAST(:at AS timestamptz)
        FROM tenants t CROSS JOIN paid p WHERE t.id = :tenant GROUP BY t.id, p.user_id ORDER BY p.user_id
        ON CONFLICT (tenant_id, user_id, metric, bucket_hour)
        DO UPDATE SET points = h.points + EXCLUDED.points, last_at = GREATEST(h.last_at, EXCLUDED.last_at)
    ), audited AS (
        INSERT INTO action_events (tenant_id, received_at, id, user_id, action_type, source, payload_hash, verification,
                                   client_time, points, object, ip, agent, client_info, metadata)
        SELECT t.id, CAST(:now AS timestamptz), p.event_id, p.user_id, p.action_type, p.source, p.payload_hash,
               p.verification, p.client_time, p.delta, p.object, CAST(p.ip AS inet), p.agent,
               CAST(p.client_info AS jsonb), CAST(p.metadata AS jsonb)
        FROM tenants t CROSS JOIN paid p WHERE t.id = :tenant
    ), used AS (
        INSERT INTO consumed_tokens (tenant_id, token_id, expires_at)
        SELECT t.id, k.id, k.expires_at
        FROM tenants t CROSS JOIN unnest(CAST(:tokens AS text[]), CAST(:tokens_expire AS timestamptz[]))
             AS k(id, expires_at)
        WHERE t.id = :tenant ON CONFLICT DO NOTHING
    )
    UPDATE users u SET current_score = n.score, total_actions = u.total_actions + n.actions,
        score_reached_at = GREATEST(COALESCE(u.score_reached_at, :at), :at)
    FROM (SELECT user_id, max(score) AS score, count(*) AS actions FROM paid GROUP BY user_id) n
    WHERE u.tenant_id = :tenant AND u.id = n.user_id
""")
