"""Who gets an address, when several pages are written at once."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analytics.ingest.page_moves import refused_moves

NAMES, PLACES = st.sampled_from("abcdefgh"), st.sampled_from("123456")
State = dict[str, str]


def judge(wanted: State, before: State) -> State:
    """With all pages there are, the oldest first."""
    return refused_moves(wanted, before, [(place, page) for page, place in before.items()])


@pytest.mark.parametrize(
    ("wanted", "before", "refused"),
    [
        ({"a": "2", "b": "1"}, {"a": "1", "b": "2"}, {}),  # they exchange theirs
        ({"a": "2", "b": "3", "c": "1"}, {"a": "1", "b": "2", "c": "3"}, {}),
        ({"a": "1", "b": "1"}, {}, {"b": "a"}),
        ({"b": "1"}, {"a": "1"}, {"b": "a"}),
        ({"b": "1", "a": "2"}, {"a": "1"}, {}),
        ({"b": "1", "a": "2"}, {"a": "1", "c": "2"}, {"a": "c", "b": "a"}),  # a cannot leave, so b cannot come
        ({"b": "1", "a": "1"}, {"a": "1"}, {"b": "a"}),  # a keeps its own
        ({"a": "1", "b": "1"}, {"a": "1", "b": "1"}, {}),  # as they were before there was a rule
        ({"b": "1", "c": "2"}, {"a": "1", "b": "1"}, {}),
        ({"c": "1"}, {"a": "1", "b": "1"}, {"c": "a"}),  # the oldest is named
    ],
)
def test_a_call_is_judged_by_what_is_there_when_it_is_done(wanted: State, before: State, refused: State) -> None:
    assert judge(wanted, before) == refused


@settings(deadline=None)
@given(st.dictionaries(NAMES, PLACES), st.dictionaries(NAMES, PLACES))
def test_nobody_moves_to_where_another_is_and_whoever_is_refused_is_told_by_whom(wanted: State, before: State) -> None:
    refused = judge(wanted, before)
    after = before | {page: place for page, place in wanted.items() if page not in refused}
    moved = {page for page, place in after.items() if before.get(page) != place}
    for page in moved:
        assert [other for other, place in after.items() if place == after[page]] == [page]
    for page, other in refused.items():
        assert page != other
        assert wanted[page] != before.get(page), "a page that keeps its address is never refused"
        assert after[other] == wanted[page]
