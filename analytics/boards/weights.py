"""A tenant's weights of the composite score: versioned, each effective from a given time."""

import math
from datetime import datetime, timedelta

from sqlalchemy import Double, Integer, select, text
from sqlalchemy.orm import Mapped, mapped_column

from analytics import outbox
from analytics.boards.progress import Projection
from analytics.scoring import Weights
from tenants.db import Base, DeletedWithTenant, Tx
from tenants.errors import Invalid, Stale

MIN_WEIGHT, MAX_WEIGHT = 0.001, 1_000_000.0
MAX_AHEAD = timedelta(days=366)
MAX_VERSIONS_LISTED = 100


class ScoreWeights(DeletedWithTenant, Base):
    __tablename__ = "score_weights"

    version: Mapped[int] = mapped_column(Integer, primary_key=True)
    likes: Mapped[float] = mapped_column(Double)
    views: Mapped[float] = mapped_column(Double)
    effective_from: Mapped[datetime]
    created_at: Mapped[datetime]
    created_by: Mapped[str]

    @property
    def weights(self) -> Weights:
        return Weights(likes=self.likes, views=self.views, version=self.version)


def current(tx: Tx, *, now: datetime) -> Weights:
    """The newest version that is effective now; the defaults are version 0."""
    rows = tx.run(_CURRENT, {"tenant": tx.tenant, "now": now})
    return Weights(likes=rows[0].likes, views=rows[0].views, version=rows[0].version) if rows else Weights()


def applied(tx: Tx) -> Weights:
    """The version that the boards' scores have, or are being given."""
    row = tx.scalar(
        select(ScoreWeights).join(
            Projection,
            (Projection.tenant_id == ScoreWeights.tenant_id) & (Projection.weights_version == ScoreWeights.version),
        )
    )
    return row.weights if row is not None else Weights()


def history(tx: Tx) -> list[ScoreWeights]:
    """The newest versions, newest first."""
    newest = select(ScoreWeights).order_by(ScoreWeights.version.desc()).limit(MAX_VERSIONS_LISTED)
    return list(tx.scalars(newest))


def add(
    tx: Tx,
    *,
    likes: float,
    views: float,
    effective_from: datetime | None,
    by: str,
    now: datetime,
    expected_version: int | None = None,
) -> ScoreWeights:
    """Add a version. It also replaces versions that would become effective after it."""
    check(likes=likes, views=views)
    if effective_from is not None and not now - timedelta(minutes=5) <= effective_from <= now + MAX_AHEAD:
        raise Invalid.field("effective_from", "now or within a year")
    tx.execute(text("SELECT pg_advisory_xact_lock(hashtextextended('weights:' || :tenant, 0))"), {"tenant": tx.tenant})
    newest = tx.scalar(select(ScoreWeights.version).order_by(ScoreWeights.version.desc()).limit(1)) or 0
    if expected_version is not None and expected_version != newest:
        raise Stale(f"The weights are at version {newest} now")
    row = ScoreWeights(
        tenant_id=tx.tenant,
        version=newest + 1,
        likes=likes,
        views=views,
        effective_from=max(effective_from or now, now),
        created_at=now,
        created_by=by,
    )
    tx.add(row)
    tx.flush()
    outbox.wake_after_commit(tx)
    return row


def check(*, likes: float, views: float) -> None:
    errors: dict[str, str] = {}
    for name, value in (("likes", likes), ("views", views)):
        if not math.isfinite(value) or not (value == 0 or MIN_WEIGHT <= value <= MAX_WEIGHT):
            errors[name] = f"0, or a number from {MIN_WEIGHT} to {MAX_WEIGHT:,.0f}"
    if not errors and likes == views == 0:
        errors["likes"] = "one of the weights must be above 0"
    if errors:
        raise Invalid.fields(errors)


_CURRENT = text("""
    SELECT version, likes, views FROM score_weights WHERE tenant_id = :tenant AND effective_from <= :now
    ORDER BY version DESC LIMIT 1
""")
