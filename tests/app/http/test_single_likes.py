"""A like is one undated item by the caller, and its answer says how many like the page."""

from uuid import uuid4

import pytest

from analytics.ingest.reasons import Result
from analytics.ingest.writes import EventKind, Outcome
from app.http.auth import Actor
from app.http.single_likes import like_answer, like_request


def test_a_like_happens_now_and_is_the_callers() -> None:
    actor = Actor("client", "acme", "acme.0", token_id="j")
    request = like_request(actor, "home", EventKind.LIKE, "ada")
    (item,) = request.items
    assert (item.page, item.user, item.is_dated, request.token) == ("home", "ada", False, actor.client_token)
    own = like_request(Actor("user", "acme", str(user := uuid4())), "home", EventKind.UNLIKE, user)
    assert (own.items[0].user, own.token) == (user, None)


@pytest.mark.parametrize(("kind", "liked"), [(EventKind.LIKE, True), (EventKind.UNLIKE, False)])
def test_the_answer_says_what_holds_now(kind: EventKind, liked: bool) -> None:
    assert like_answer(kind, Outcome(Result.ACCEPTED, likes=3)) == {"liked": liked, "likes": 3}
