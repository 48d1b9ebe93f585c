"""Conditional requests: 304 for what the caller has, 412 for what they did not read."""

import time

import pytest
from flask import Flask

from app.http.answer_cache import Answer
from app.http.conditional import expected_version, if_changed, is_older, version_in
from app.http.fast_reads import to_send
from tenants.errors import Stale

ANSWER = Answer.of(b'{"items": []}', version=1)


@pytest.mark.parametrize(
    ("given", "status"),
    [
        (None, 200),
        ("", 200),
        ('"another"', 200),
        (ANSWER.etag.strip('"'), 200),
        (ANSWER.etag, 304),
        (f"W/{ANSWER.etag}", 304),
        (f'"another", {ANSWER.etag}', 304),
        ("*", 304),
    ],
)
def test_what_the_caller_already_has_is_not_sent_again(app: Flask, given: str | None, status: int) -> None:
    with app.test_request_context(headers={} if given is None else {"If-None-Match": given}):
        answer = if_changed(ANSWER)
    assert (answer.status_code, answer.data) == (status, ANSWER.body if status == 200 else b"")
    assert answer.headers["ETag"] == ANSWER.etag
    assert "private" in answer.headers["Cache-Control"]


@pytest.mark.parametrize("given", [ANSWER.etag, f"W/{ANSWER.etag}", "*"])
def test_an_answer_that_may_be_outdated_is_sent_to_those_who_have_it(app: Flask, given: str) -> None:
    unverified = Answer.of(ANSWER.body, version=1, is_verified=False)
    with app.test_request_context(headers={"If-None-Match": given}):
        answer = if_changed(unverified)
    assert (answer.status_code, answer.data, answer.headers["ETag"]) == (200, ANSWER.body, ANSWER.etag)
    assert to_send(unverified, given) is unverified.whole
    assert to_send(ANSWER, given) is ANSWER.unchanged


def test_another_body_has_another_etag() -> None:
    assert Answer.of(b"{}", version=1).etag != ANSWER.etag == Answer.of(ANSWER.body, version=2).etag


@pytest.mark.parametrize(
    ("given", "version"), [(None, None), ("*", None), (" * ", None), ('"0"', 0), ('"12"', 12), (' W/"12" ', 12)]
)
def test_a_change_names_the_version_that_was_read(app: Flask, given: str | None, version: int | None) -> None:
    with app.test_request_context(headers={} if given is None else {"If-Match": given}):
        assert expected_version() == version


@pytest.mark.parametrize("given", ["", "12", '"a"', '""', '"-1"', '"1", "2"', '"1234567890123456789"', "'1'"])
def test_a_tag_in_another_form_matches_no_version(app: Flask, given: str) -> None:
    with app.test_request_context(headers={"If-Match": given}), pytest.raises(Stale):
        expected_version()


def test_the_tag_of_a_board_names_its_version() -> None:
    older, newer = (Answer.of_board(b"{}", version=version) for version in (8, int(time.time() * 1_000_000)))
    assert older.etag != newer.etag
    assert [version_in(answer.etag) for answer in (older, newer)] == [older.version, newer.version]
    assert version_in(f"W/{older.etag}, {newer.etag}, *") == newer.version
    assert is_older(older, newer.etag)
    assert not any(is_older(answer, tags) for answer in (older, newer) for tags in (None, "*", older.etag))


@pytest.mark.parametrize(
    "tags", [None, "", "*", '"8"', '"8-x"', f'"{"9" * 19}-{"0" * 24}"', ANSWER.etag, "8-" + "0" * 24]
)
def test_another_tag_names_none(tags: str | None) -> None:
    assert version_in(tags) == 0


def test_a_version_of_the_future_was_made_up() -> None:
    ahead, made_up = (f'"{int((time.time() + seconds) * 1_000_000)}-{"0" * 24}"' for seconds in (30, 120))
    assert version_in(ahead) > 0
    assert version_in(made_up) == 0
    assert version_in(f"{made_up}, {ahead}") == version_in(ahead)
    older = Answer.of_board(b"{}", version=8)
    assert not is_older(older, made_up)
