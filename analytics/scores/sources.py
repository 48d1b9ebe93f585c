"""The formats of a ledger entry's `source`: what the entry is for.

A source is unique in its tenant for ever, so each format names what may be paid once: another format for the same thing
would pay it twice.
"""

from uuid import UUID, uuid4


def of_action(user_id: UUID, action_id: str) -> str:
    """What a user claims, by the user's own id for it: users cannot take each other's."""
    return f"action:{user_id}:{action_id}"


def of_token(token_id: str) -> str:
    """What an action token allows, whoever shows it."""
    return f"token:{token_id}"


def of_event(event_key: UUID | None) -> str:
    """An action in a batch, by the tenant's id for the event; without one, every event is another."""
    return f"event:{(event_key or uuid4()).hex}"


def of_quest(quest_id: UUID, user_id: UUID, reward: str) -> str:
    """A quest's reward of one type to its performer."""
    return f"quest:{quest_id}:{user_id}:{reward.lower()}"


CORRECTION = "correction:"


def of_correction(correction_id: UUID) -> str:
    """What an admin corrected."""
    return f"{CORRECTION}{correction_id}"


def of_reversal(flag_id: UUID, entry_id: int) -> str:
    """An entry taken back because of a flag."""
    return f"reversal:{flag_id}:{entry_id}"
