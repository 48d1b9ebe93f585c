"""What a domain error carries for its caller."""

from tenants.errors import Invalid, NotFound, first_messages


def test_without_a_detail_an_error_has_its_title() -> None:
    error = NotFound()
    assert (error.detail, str(error), error.errors, error.retry_after_s) == ("Not found", "Not found", None, None)
    assert NotFound("There is no page").detail == "There is no page"


def test_a_wrong_field_is_in_the_detail_and_by_name() -> None:
    error = Invalid.field("title", "is too long")
    assert (error.detail, error.errors) == ("title: is too long", {"title": ["is too long"]})
    assert Invalid.field("title", "is too long", detail="No").detail == "No"


def test_several_wrong_fields_are_each_named_by_their_first_message() -> None:
    error = Invalid.fields({"a": "one", "b": ["two", "three"]})
    assert error.errors == {"a": ["one"], "b": ["two", "three"]}
    assert error.detail == first_messages(error.errors) == "a: one; b: two"
