"""The action catalog: what a tenant's users can do, and how many points each action pays."""

import re
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import BigInteger, delete, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Mapped, mapped_column

from tenants.db import Base, DeletedWithTenant, Tx
from tenants.errors import Invalid, NotFound

ACTION_TYPE = re.compile(r"[A-Za-z0-9._~-]{1,64}")
MAX_POINTS = 2**53 - 1
MAX_ACTIONS = 1_000
MAX_DAILY_LIMIT = 1_000_000
MAX_COOLDOWN_S = 31_536_000


class ActionType(DeletedWithTenant, Base):
    __tablename__ = "action_catalog"

    type: Mapped[str] = mapped_column(primary_key=True)
    points: Mapped[int] = mapped_column(BigInteger)
    # The maximum of points for a user in a day (UTC).
    daily_cap: Mapped[int | None] = mapped_column(BigInteger)
    # How often a user may do it in a day (UTC).
    daily_limit: Mapped[int | None]
    # How long after doing it a user may do it again.
    cooldown_s: Mapped[int | None]
    once_per_object: Mapped[bool] = mapped_column(server_default="false")
    # Whether an action token of the tenant's app is required: the user's own claim is not enough.
    requires_token: Mapped[bool] = mapped_column(server_default="false")
    enabled: Mapped[bool] = mapped_column(server_default="true")
    updated_at: Mapped[datetime]


@dataclass(frozen=True)
class Terms:
    """How many points an action pays, and how often."""

    points: int
    daily_cap: int | None = None
    daily_limit: int | None = None
    cooldown_s: int | None = None
    once_per_object: bool = False
    requires_token: bool = False
    enabled: bool = True


class UnknownAction(Invalid):
    code = "unknown_action"
    title = "There is no such action"

    def __init__(self, action_type: str, *, disabled: bool = False) -> None:
        message = f"there is no action {action_type[:64]!r} in the catalog"
        if disabled:
            message = f"the action {action_type[:64]!r} is disabled"
        super().__init__(message, errors={"action_type": [message]})


class ActionNotFound(NotFound):
    """The action is not in the catalog."""


def find(tx: Tx, action_type: str) -> ActionType:
    """The action, if it is enabled."""
    row = tx.scalar(select(ActionType).where(ActionType.type == action_type))
    if row is None or not row.enabled:
        raise UnknownAction(action_type, disabled=row is not None)
    return row


def list_(tx: Tx) -> list[ActionType]:
    return list(tx.scalars(select(ActionType).order_by(ActionType.type)))


def put(tx: Tx, action_type: str, terms: Terms, *, now: datetime) -> ActionType:
    """Create an action, or change its terms."""
    check(action_type, terms)
    values = {**vars(terms), "updated_at": now}
    tx.execute(
        insert(ActionType)
        .values(tenant_id=tx.tenant, type=action_type, **values)
        .on_conflict_do_update(index_elements=["tenant_id", "type"], set_=values)
    )
    if len(list_(tx)) > MAX_ACTIONS:
        raise Invalid(f"A catalog has at most {MAX_ACTIONS} actions")
    return tx.scalars(select(ActionType).where(ActionType.type == action_type)).one()


def remove(tx: Tx, action_type: str) -> None:
    """Remove an action. Payments for it stay in the ledger."""
    removed = tx.scalar(delete(ActionType).where(ActionType.type == action_type).returning(ActionType.type))
    if removed is None:
        raise ActionNotFound(f"There is no action {action_type[:64]!r}")


def check(action_type: str, terms: Terms) -> None:
    errors: dict[str, str] = {}
    if ACTION_TYPE.fullmatch(action_type) is None or action_type in {".", ".."}:
        errors["type"] = "1 to 64 of A-Z, a-z, 0-9 and . _ ~ -"
    if not 1 <= terms.points <= MAX_POINTS:
        errors["points"] = f"a whole number from 1 to {MAX_POINTS}"
    if terms.daily_cap is not None and not 1 <= terms.daily_cap <= MAX_POINTS:
        errors["daily_cap"] = f"a whole number of points from 1 to {MAX_POINTS}, or nothing"
    elif terms.daily_cap is not None and terms.daily_cap < terms.points and not terms.requires_token:
        # With a token, which may allow fewer points, it can be paid.
        errors["daily_cap"] = f"at least the action's points ({terms.points}): below, it could not be paid"
    if terms.daily_limit is not None and not 1 <= terms.daily_limit <= MAX_DAILY_LIMIT:
        errors["daily_limit"] = f"a whole number of times from 1 to {MAX_DAILY_LIMIT}, or nothing"
    if terms.cooldown_s is not None and not 1 <= terms.cooldown_s <= MAX_COOLDOWN_S:
        errors["cooldown_s"] = "a whole number of seconds, up to a year, or nothing"
    if errors:
        raise Invalid.fields(errors)
