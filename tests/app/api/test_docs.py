"""The contract: valid OpenAPI, complete, and with the access that each route declares."""

from flask.testing import FlaskClient
from openapi_spec_validator import validate


def test_the_contract_is_valid_openapi_and_readable(client: FlaskClient) -> None:
    spec = client.get("/api/openapi.json").get_json()
    assert spec["openapi"].startswith("3.1")
    validate(spec)
    assert spec["paths"]["/api/v1/clients"]["get"]["security"] == [{"client": ["admin"]}, {"user": []}]
    assert spec["paths"]["/api/v1/beacon"]["post"]["security"] == [{"key": []}, {"key_in_query": []}]
    assert spec["paths"]["/health/live"]["get"]["security"] == []
    page = client.get("/api/docs")
    assert page.content_type.startswith("text/html")
    for path in spec["paths"]:
        assert path in page.text
