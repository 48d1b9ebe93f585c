"""The list of spaces: by key, with what the caller may see of each."""

from flask.testing import FlaskClient

from tests.analytics.boards.conftest import project, read
from tests.analytics.conftest import make_page
from tests.people import Caller, client_of, user_of

SPACES = "/api/v1/spaces"


def test_spaces_are_listed_by_key_in_slices(app_client: Caller) -> None:
    for space in ("c", "a", "b"):
        make_page(app_client, space, space=space)
    first = read(app_client, f"{SPACES}?limit=2")
    rest = read(app_client, f"{SPACES}?limit=2&cursor={first['next_cursor']}")
    assert [one["space"] for one in first["items"]] == ["a", "b"]
    assert ([one["space"] for one in rest["items"]], rest["next_cursor"]) == (["c"], None)


def test_a_stranger_sees_spaces_with_public_pages_and_counts_only_those(
    app_client: Caller, client: FlaskClient, tenant: str
) -> None:
    for page, space, visibility in (("a", "mixed", "public"), ("b", "mixed", "private"), ("c", "secret", "private")):
        make_page(app_client, page, space=space, visibility=visibility)
        app_client("POST", f"/api/v1/pages/{page}/views")
        app_client("PUT", f"/api/v1/pages/{page}/likes/u-1")
    project(tenant)
    mixed, secret = read(app_client, SPACES)["items"]
    assert mixed == {"space": "mixed", "pages": 2, "public_pages": 1, "views_7d": 2, "visitors_7d": 0, "likes_7d": 2}
    assert secret == {"space": "secret", "pages": 1, "public_pages": 0, "views_7d": 1, "visitors_7d": 0, "likes_7d": 1}
    stranger = user_of(client, tenant, sees_private=False)
    assert read(stranger, SPACES)["items"] == [
        {"space": "mixed", "pages": 1, "public_pages": 1, "views_7d": 1, "visitors_7d": 0, "likes_7d": 1}
    ]


def test_a_client_that_may_not_read_boards_sees_no_space(client: FlaskClient, tenant: str) -> None:
    assert client_of(client, tenant, "events:write")("GET", SPACES).get_json()["code"] == "insufficient_scope"
