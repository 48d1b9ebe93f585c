"""What is sent about quests: cleaned first, then measured."""

import marshmallow as ma
import pytest

from app.api.quest_schemas import AttestationIn, Line, Lines, QuestIn


def test_lengths_are_those_of_what_is_stored() -> None:
    assert Line(1, 3).deserialize(" a\u202eb\x00c ") == "abc"
    assert Lines(1, 4).deserialize("a\r\nb\n") == "a\nb"
    for field, value in ((Line(1, 3), "abcd"), (Line(1, 3), "\u202e"), (Lines(2, 9), "a \n ")):
        with pytest.raises(ma.ValidationError):
            field.deserialize(value)


@pytest.mark.parametrize(
    "attestation", [{"rating": 0}, {"rating": 6}, {"rating": 4.5}, {}, {"rating": 5, "signature": "x" * 201}]
)
def test_a_rating_is_a_whole_number_from_one_to_five(attestation: dict[str, object]) -> None:
    with pytest.raises(ma.ValidationError):
        AttestationIn().load(attestation)
    assert AttestationIn().load({"rating": 5, "comments": ""}) == {"rating": 5, "comments": ""}


def test_lengths_are_in_the_contract() -> None:
    title = QuestIn().fields["title"]
    assert (title.metadata["minLength"], title.metadata["maxLength"]) == (3, 100)
