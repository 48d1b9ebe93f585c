"""The action catalog and action tokens over HTTP."""

from flask.testing import FlaskClient

from tests.people import Caller


def test_an_impossible_cap_names_its_field(app_client: Caller) -> None:
    answer = app_client("PUT", "/api/v1/actions/catalog/post", json={"points": 10, "daily_cap": 9})
    assert (answer.status_code, list(answer.get_json()["errors"])) == (422, ["daily_cap"])
    assert app_client("GET", "/api/v1/actions/catalog").get_json()["items"] == []


def test_the_contract_says_which_is_points_and_which_is_times(client: FlaskClient) -> None:
    schemas = client.get("/api/openapi.json").get_json()["components"]["schemas"]
    for name in ("TermsIn", "ActionOut"):
        fields = schemas[name]["properties"]
        assert "points" in fields["daily_cap"]["description"]
        assert "times" in fields["daily_limit"]["description"]
