"""Texts are plain: nothing in them changes how the rest is shown."""

from hypothesis import given
from hypothesis import strategies as st

from analytics.quests.texts import BIDI, clean, clean_all, clean_lines


def test_control_and_bidi_characters_are_gone_and_lines_stay_lines() -> None:
    assert clean("  a\x00b\u202ec\td \n e ") == "abc d e"
    assert clean_lines("one\r\ntwo\x07 \u2066\n\n\nthree\x85 ") == "one\ntwo\n\n\nthree"
    assert clean_lines("\n <b>bold</b> & 'quoted'\n") == "<b>bold</b> & 'quoted'", "as text: escaped where it is shown"
    assert clean("\ufeffa\u200bb\u2060") == "ab", "nothing invisible"
    assert clean("👩\u200d🚀") == "👩\u200d🚀"
    assert clean_all(["a ", "b", "a"]) == ["a", "b"]


@given(st.text())
def test_cleaning_twice_changes_nothing(text: str) -> None:
    for cleaned in (clean(text), clean_lines(text)):
        assert not BIDI & set(cleaned)
        assert "\x00" not in cleaned
    assert clean(clean(text)) == clean(text)
    assert clean_lines(clean_lines(text)) == clean_lines(text)
