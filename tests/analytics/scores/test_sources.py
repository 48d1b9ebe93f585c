"""A ledger entry's source: what was paid under an earlier release must have the same one in this."""

from uuid import UUID

from analytics.scores import sources

ID = UUID("00000000-0000-4000-8000-0000000000aa")


def test_the_formats_are_those_of_the_entries_that_are_stored() -> None:
    assert sources.of_action(ID, "a-1") == "action:00000000-0000-4000-8000-0000000000aa:a-1"
    assert sources.of_token("t-1") == "token:t-1"
    assert sources.of_event(ID) == "event:000000000000400080000000000000aa"
    assert sources.of_reversal(ID, 7) == "reversal:00000000-0000-4000-8000-0000000000aa:7"


def test_events_without_an_id_are_all_different() -> None:
    assert sources.of_event(None) != sources.of_event(None)
