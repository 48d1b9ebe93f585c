"""The action catalog: what a tenant's users can do, and how many points it is worth. The server decides, by this."""

import re
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import BigInteger, ForeignKey, delete, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Mapped, mapped_column

from tenants.db import Base, TenantOwned, Tx
from tenants.errors import Invalid, NotFound

ACTION_TYPE = re.compile(r"[A-Za-z0-9._~-]{1,64}")
MOST_POINTS = 2**53 - 1
MOST_ACTIONS = 1_000


class ActionType(TenantOwned, Base):
    __tablename__ = "action_catalog"

    tenant_id: Mapped[str] = mapped_column(
        ForeignKey("tenants.id", ondelete="CASCADE"), primary_key=True, sort_order=-1
    )
    type: Mapped[str] = mapped_column(primary_key=True)
    points: Mapped[int] = mapped_column(BigInteger)
    # How often a user may do it in a day (UTC).
    daily_cap: Mapped[int | None]
    # How long after doing it a user may do it again.
    cooldown_s: Mapped[int | None]
    once_per_object: Mapped[bool] = mapped_column(server_default="false")
    # Whether a user's own word is not enough: an action token of the tenant's app must vouch for it.
    requires_token: Mapped[bool] = mapped_column(server_default="false")
    enabled: Mapped[bool] = mapped_column(server_default="true")
    updated_at: Mapped[datetime]


@dataclass(frozen=True)
class Terms:
    """What an action is worth, and how often."""

    points: int
    daily_cap: int | None = None
    cooldown_s: int | None = None
    once_per_object: bool = False
    requires_token: bool = False
    enabled: bool = True


class UnknownAction(Invalid):
    code = "unknown_action"
    title = "There is no such action"

    def __init__(self, action_type: str, *, disabled: bool = False) -> None:
        said = f"there is no action {action_type[:64]!r} in the catalog"
        if disabled:
            said = f"the action {action_type[:64]!r} is disabled"
        super().__init__(said, errors={"action_type": [said]})


class ActionNotFound(NotFound):
    """It is not in the catalog."""


def find(tx: Tx, action_type: str) -> ActionType:
    """The action, if it can be done now."""
    row = tx.scalar(select(ActionType).where(ActionType.type == action_type))
    if row is None or not row.enabled:
        raise UnknownAction(action_type, disabled=row is not None)
    return row


def list_(tx: Tx) -> list[ActionType]:
    return list(tx.scalars(select(ActionType).order_by(ActionType.type)))


def put(tx: Tx, action_type: str, terms: Terms, *, now: datetime) -> ActionType:
    """Make an action, or give it other terms."""
    check(action_type, terms)
    values = {**vars(terms), "updated_at": now}
    tx.execute(
        insert(ActionType)
        .values(tenant_id=tx.tenant, type=action_type, **values)
        .on_conflict_do_update(index_elements=["tenant_id", "type"], set_=values)
    )
    if len(list_(tx)) > MOST_ACTIONS:
        raise Invalid(f"A catalog holds at most {MOST_ACTIONS} actions")
    return tx.scalars(select(ActionType).where(ActionType.type == action_type)).one()


def remove(tx: Tx, action_type: str) -> None:
    """Nobody can do it any more. What was done stays in the ledger."""
    gone = tx.scalar(delete(ActionType).where(ActionType.type == action_type).returning(ActionType.type))
    if gone is None:
        raise ActionNotFound(f"There is no action {action_type[:64]!r}")


def check(action_type: str, terms: Terms) -> None:
    errors: dict[str, str] = {}
    if ACTION_TYPE.fullmatch(action_type) is None or action_type in {".", ".."}:
        errors["type"] = "1 to 64 of A-Z, a-z, 0-9 and . _ ~ -"
    if not 1 <= terms.points <= MOST_POINTS:
        errors["points"] = f"a whole number from 1 to {MOST_POINTS}"
    if terms.daily_cap is not None and not 1 <= terms.daily_cap <= 1_000_000:
        errors["daily_cap"] = "a whole number from 1 to 1000000, or nothing"
    if terms.cooldown_s is not None and not 1 <= terms.cooldown_s <= 31_536_000:
        errors["cooldown_s"] = "a whole number of seconds, up to a year, or nothing"
    if errors:
        raise Invalid.fields(errors)
