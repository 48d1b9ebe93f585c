"""Quests: work that a member offers, another one does, and others attest; it pays XP and reputation exactly once."""
