"""OAuth for tenant apps, used through libraries that know nothing of us."""

import jwt as pyjwt
import pytest
from authlib.integrations.requests_client import OAuth2Session as AuthlibSession
from flask.testing import FlaskClient
from oauthlib.oauth2 import BackendApplicationClient
from requests_oauthlib import OAuth2Session

from tenants import credentials
from tenants.db import tenant_tx, utcnow
from tests.people import client_of, token_of
from tests.service import Service


@pytest.fixture
def service(demo_service: Service) -> Service:
    return demo_service


def test_requests_oauthlib_and_pyjwt_work_unmodified(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OAUTHLIB_INSECURE_TRANSPORT", "1")
    metadata = service.get("/.well-known/oauth-authorization-server").json()
    client_id, secret = service.ready["client_id"], service.ready["client_secret"]
    session = OAuth2Session(client=BackendApplicationClient(client_id=client_id))
    token = session.fetch_token(metadata["token_endpoint"], client_id=client_id, client_secret=secret)
    me = session.get(f"{service.url}/api/v1/me").json()
    assert (me["kind"], me["tenant"], me["id"]) == ("client", "demo", client_id)
    assert "admin" in me["scopes"]

    key = pyjwt.PyJWKClient(metadata["jwks_uri"]).get_signing_key_from_jwt(token["access_token"])
    claims = pyjwt.decode(
        token["access_token"], key, algorithms=["ES256"], audience="plaudit", issuer=metadata["issuer"]
    )
    assert claims["tenant"] == "demo"


def test_authlibs_client_works_with_basic_and_body(service: Service) -> None:
    for method in ("client_secret_basic", "client_secret_post"):
        session = AuthlibSession(
            service.ready["client_id"],
            service.ready["client_secret"],
            token_endpoint_auth_method=method,
            scope="stats:read",
        )
        session.fetch_token(f"{service.url}/oauth/token", grant_type="client_credentials")
        assert session.get(f"{service.url}/api/v1/me").json()["scopes"] == ["stats:read"]


@pytest.mark.parametrize(
    ("data", "auth", "status", "error"),
    [
        ({"grant_type": "client_credentials"}, None, 401, "invalid_client"),
        ({"grant_type": "client_credentials"}, ("{id}", "wrong"), 401, "invalid_client"),
        ({"grant_type": "client_credentials"}, ("nobody.123", "{secret}"), 401, "invalid_client"),
        ({"grant_type": "client_credentials", "client_id": "x.1", "client_secret": "y"}, None, 401, "invalid_client"),
        ({"grant_type": "client_credentials"}, ("'; DROP", "{secret}"), 401, "invalid_client"),
        ({"grant_type": "client_credentials", "scope": "everything"}, ("{id}", "{secret}"), 400, "invalid_scope"),
        ({"grant_type": "client_credentials", "scope": "admin"}, ("{id}", "{secret}"), 400, "invalid_scope"),
        ({"grant_type": "password"}, ("{id}", "{secret}"), 400, "unsupported_grant_type"),
        ({}, ("{id}", "{secret}"), 400, "invalid_request"),
        ({"grant_type": ""}, ("{id}", "{secret}"), 400, "invalid_request"),
        ({"grant_type": ["client_credentials"] * 2}, ("{id}", "{secret}"), 400, "invalid_request"),
        ({"grant_type": "client_credentials", "scope": ["a", "a"]}, ("{id}", "{secret}"), 400, "invalid_request"),
    ],
)
def test_a_bad_token_request_is_refused_as_the_rfc_says(
    client: FlaskClient,
    tenant: str,
    data: dict[str, str | list[str]],
    auth: tuple[str, str] | None,
    status: int,
    error: str,
) -> None:
    app = client_of(client, tenant, "stats:read")
    filled = tuple(part.format(id=app.id, secret=app.secret) for part in auth) if auth else None
    answer = client.post("/oauth/token", data=data, auth=filled)
    assert answer.status_code == status, answer.text
    body = answer.get_json()
    assert body["error"] == body["code"] == error
    assert body["request_id"]
    assert answer.headers.get("WWW-Authenticate") == ('Basic realm="plaudit"' if status == 401 else None)


def test_the_token_route_works_at_any_address_and_whatever_the_header(client: FlaskClient, tenant: str) -> None:
    import base64

    app = client_of(client, tenant)
    data = {"grant_type": "client_credentials"}
    for base_url in ("http://10.0.0.5:8000", "http://plaudit.internal", "https://plaudit.example"):
        assert client.post("/oauth/token", data=data, auth=(app.id, app.secret), base_url=base_url).status_code == 200
    for raw in (b"\xff\xfe:x", b"\x00:\x00", f"{tenant}.\x00x:y".encode(), b"no colon", b"", "é:é".encode()):
        headers = {"Authorization": "Basic " + base64.b64encode(raw).decode()}
        assert client.post("/oauth/token", data=data, headers=headers).status_code == 401, raw
    assert (
        client.post(
            "/oauth/token", data=data, headers={"Authorization": "Basic é".encode().decode("latin-1")}
        ).status_code
        == 401
    )
    for client_id in (f"{tenant}.%00", f"{tenant}.\x00x", "a" * 5000):
        assert (
            client.post("/oauth/token", data={**data, "client_id": client_id, "client_secret": "x"}).status_code == 401
        )
    in_address = f"/oauth/token?grant_type=client_credentials&client_id={app.id}&client_secret={app.secret}"
    assert client.post(in_address).status_code in {400, 401}, "a secret in an address is not taken"


def test_a_wrong_secret_is_not_a_use(client: FlaskClient, tenant: str) -> None:
    with tenant_tx(tenant) as tx:
        made = credentials.create_client(tx, name="x", scopes=["stats:read"], now=utcnow())
    data = {"grant_type": "client_credentials"}
    assert client.post("/oauth/token", data=data, auth=(made.client.id, "wrong")).status_code == 401
    with tenant_tx(tenant) as tx:
        assert credentials.list_clients(tx)[0].last_used_at is None


def test_a_scope_can_be_narrowed(client: FlaskClient, tenant: str) -> None:
    app = client_of(client, tenant, "stats:read", "events:write")
    narrowed = token_of(client, app.id, app.secret, scope="stats:read")
    me = client.get("/api/v1/me", headers={"Authorization": f"Bearer {narrowed}"})
    assert me.get_json()["scopes"] == ["stats:read"]


def test_a_revoked_token_and_a_revoked_client_are_out_at_once(client: FlaskClient, tenant: str) -> None:
    admin, app = client_of(client, tenant), client_of(client, tenant, "stats:read")
    other = client_of(client, tenant, "stats:read")
    assert app("GET", "/api/v1/me").status_code == 200

    by_another = client.post("/oauth/revoke", data={"token": app.token}, auth=(other.id, other.secret))
    assert by_another.status_code == 400
    assert app("GET", "/api/v1/me").status_code == 200
    assert client.post("/oauth/revoke", data={"token": app.token}, auth=(app.id, app.secret)).status_code == 200
    assert app("GET", "/api/v1/me").status_code == 401

    app.token = token_of(client, app.id, app.secret)
    assert app("GET", "/api/v1/me").status_code == 200
    assert admin("DELETE", f"/api/v1/clients/{app.id}").status_code == 204
    assert app("GET", "/api/v1/me").status_code == 401
    assert (
        client.post("/oauth/token", data={"grant_type": "client_credentials"}, auth=(app.id, app.secret)).status_code
        == 401
    )
