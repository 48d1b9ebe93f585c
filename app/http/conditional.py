"""Conditional requests: `If-None-Match`, to get only what is new; `If-Match`, to change only what was read."""

import re
import time
from collections.abc import Callable
from typing import Any, TypeVar

from flask import Response, request

from app.http.answer_cache import CONDITIONAL_HEADERS, Answer
from tenants.errors import Stale

# As `Answer.of_board` writes it.
BOARD_TAG = re.compile(r'"(\d{1,18})-[0-9a-f]{24}"')
# How far PostgreSQL's clock may be ahead of this one.
MAX_AHEAD_S = 60

View = TypeVar("View", bound=Callable[..., Any])


def conditional(*headers: str) -> Callable[[View], View]:
    """Declare for OpenAPI that a route answers with an `ETag`, and which of `If-None-Match` and `If-Match` it reads."""

    def declare(view: View) -> View:
        view.plaudit_conditional = frozenset({"ETag", *headers})  # type: ignore[attr-defined]
        return view

    return declare


def if_changed(answer: Answer) -> Response:
    """The answer, or 304 if the caller already has it."""
    headers = [("ETag", answer.etag), *CONDITIONAL_HEADERS]
    if is_one_of(answer, request.environ.get("HTTP_IF_NONE_MATCH")):
        return Response(status=304, headers=headers)
    return Response(answer.body, content_type="application/json", headers=headers)


def version_in(tags: str | None) -> int:
    """The newest version of a board that `If-None-Match` names, which the caller has; 0: none.

    A version is the time of its change, so one of the future is made up: nobody waits for it.
    """
    if tags is None:
        return 0
    newest = int((time.time() + MAX_AHEAD_S) * 1_000_000)
    return max((version for version in map(int, BOARD_TAG.findall(tags)) if version <= newest), default=0)


def is_older(answer: Answer, tags: str | None) -> bool:
    """Whether the caller has a newer version of the board, as `If-None-Match` says."""
    return tags is not None and tags != answer.etag and answer.version < version_in(tags)


def is_one_of(answer: Answer, tags: str | None) -> bool:
    """Whether `If-None-Match` names this answer, and it is verified: the caller has what there is."""
    if not answer.is_verified:
        return False
    if tags is None or tags == answer.etag:
        return tags is not None
    named = [tag.strip().removeprefix("W/") for tag in tags.split(",")]
    return answer.etag in named or "*" in named


def expected_version() -> int | None:
    """The version the caller read (versions are numbers, ETags their text); None when any version will do.

    A tag in another form matches nothing.
    """
    given = request.headers.get("If-Match")
    if given is None or given.strip() == "*":
        return None
    match = re.fullmatch(r'\s*(?:W/)?"(\d{1,18})"\s*', given)
    if match is None:
        raise Stale("If-Match must be an ETag exactly as it was sent")
    return int(match[1])
