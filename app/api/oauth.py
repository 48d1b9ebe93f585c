"""OAuth 2.0 for tenant apps: client credentials (RFC 6749), revocation (7009), metadata (8414), keys (7517).

Errors here are RFC 6749's (`error`, `error_description`), as every OAuth library expects, plus our own fields.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import marshmallow as ma
import orjson
from authlib.integrations.flask_oauth2 import AuthorizationServer
from authlib.integrations.flask_oauth2.requests import FlaskOAuth2Payload, FlaskOAuth2Request
from authlib.oauth2.rfc6749 import ClientMixin, InvalidRequestError, InvalidScopeError, OAuth2Request, grants
from authlib.oauth2.rfc7009 import RevocationEndpoint
from flask import Flask, Response, g, jsonify, request
from flask.typing import ResponseReturnValue

from app.api.blueprint import Blueprint, ProblemSchema, Schema
from app.http.auth import caller_network
from app.http.rights import public
from app.http.services import essentials, services
from app.settings import Settings
from tenants import credentials, logs, throttle
from tenants.credentials import Client, Scope
from tenants.db import utcnow
from tenants.security_events import SecurityEvent
from tenants.signing import ALGORITHM, BadToken

TRIES_PER_MINUTE = throttle.per_minute(600)

blueprint = Blueprint("oauth", __name__, description="Credentials of tenant apps")

TEXT = {"type": "string"}
LOGIN = {
    "client_id": {**TEXT, "description": "in the body, or by HTTP Basic"},
    "client_secret": {**TEXT, "format": "password"},
}
BY_BASIC_OR_BODY: list[dict[str, list[str]]] = [{"client_login": []}, {}]


def form(**properties: dict[str, Any]) -> dict[str, Any]:
    """The request body of a form in which the first of these fields is required, besides the client's login."""
    schema = {"type": "object", "required": [next(iter(properties))], "properties": {**properties, **LOGIN}}
    return {"required": True, "content": {"application/x-www-form-urlencoded": {"schema": schema}}}


class AccessTokenOut(Schema):
    access_token = ma.fields.String(metadata={"description": "a JWT, for Authorization: Bearer"})
    token_type = ma.fields.String(metadata={"enum": ["Bearer"]})
    expires_in = ma.fields.Integer(metadata={"description": "seconds"})
    scope = ma.fields.String(metadata={"description": "the granted scopes, separated by spaces"})


class OAuthErrorOut(ProblemSchema):
    """As RFC 6749 has it, and as a problem."""

    error = ma.fields.String(required=True)
    error_description = ma.fields.String(metadata={"x-sometimes": True})


class SigningKeyOut(Schema):
    kty, crv, x, y, kid, alg, use = (ma.fields.String() for _ in range(7))


class SigningKeysOut(Schema):
    keys = ma.fields.List(ma.fields.Nested(SigningKeyOut))


class AuthorizationServerOut(Schema):
    issuer = ma.fields.String()
    token_endpoint = ma.fields.String()
    token_endpoint_auth_methods_supported = ma.fields.List(ma.fields.String())
    revocation_endpoint = ma.fields.String()
    revocation_endpoint_auth_methods_supported = ma.fields.List(ma.fields.String())
    jwks_uri = ma.fields.String()
    grant_types_supported = ma.fields.List(ma.fields.String())
    response_types_supported = ma.fields.List(ma.fields.String())
    scopes_supported = ma.fields.List(ma.fields.String())
    access_token_signing_alg_values_supported = ma.fields.List(ma.fields.String())
    service_documentation = ma.fields.String()


class OAuthClient(ClientMixin):  # type: ignore[misc]
    """A client as authlib sees it."""

    def __init__(self, client: Client) -> None:
        self.client = client

    def get_client_id(self) -> str:
        return self.client.id

    def get_allowed_scope(self, scope: str) -> str:
        return " ".join(self.client.scopes if not scope else [s for s in scope.split() if s in self.client.scopes])

    def check_client_secret(self, client_secret: str) -> bool:
        return self.client.accepts(client_secret, now=utcnow())

    def check_endpoint_auth_method(self, method: str, endpoint: str) -> bool:  # noqa: ARG002
        return method in {"client_secret_basic", "client_secret_post"}

    def check_grant_type(self, grant_type: str) -> bool:
        return bool(grant_type == "client_credentials")


class UnknownClient(OAuthClient):
    def __init__(self) -> None:
        return

    def check_client_secret(self, client_secret: str) -> bool:  # noqa: ARG002
        return False


class ClientCredentials(grants.ClientCredentialsGrant):  # type: ignore[misc]
    TOKEN_ENDPOINT_AUTH_METHODS = ("client_secret_basic", "client_secret_post")

    def validate_requested_scope(self) -> None:
        """A client that requests a scope it lacks gets an error, not fewer scopes."""
        requested = set((self.request.payload.scope or "").split())
        if not requested <= set(self.request.client.client.scopes):
            raise InvalidScopeError


class Revocation(RevocationEndpoint):  # type: ignore[misc]
    CLIENT_AUTH_METHODS = ("client_secret_basic", "client_secret_post")

    def query_token(self, token_string: str, _token_type_hint: str | None) -> "IssuedToken | None":
        try:
            return IssuedToken(essentials().signer.verify(token_string))
        except BadToken:
            return None  # RFC 7009: a token that is no longer valid needs no revocation

    def revoke_token(self, token: "IssuedToken", _request: Any) -> None:
        claims = token.claims
        expires_at = datetime.fromtimestamp(claims["exp"], UTC)
        credentials.revoke_token(claims["tenant"], claims["jti"], expires_at=expires_at)
        logs.bind(tenant_id=claims["tenant"], user_id=claims["sub"])
        logs.audit(SecurityEvent.TOKEN_REVOKED, client=claims["sub"])


class IssuedToken:
    def __init__(self, claims: dict[str, Any]) -> None:
        self.claims = claims

    def check_client(self, client: OAuthClient) -> bool:
        return bool(self.claims.get("client_id") == client.client.id)


class FormPayload(FlaskOAuth2Payload):  # type: ignore[misc]
    """Parameters from the body only: a secret in the query would appear in access logs."""

    @property
    def data(self) -> Any:
        return self._request.form


class PlauditOAuth2Request(FlaskOAuth2Request):  # type: ignore[misc]
    def __init__(self) -> None:
        # The operator decides whether the connection is secure (a proxy, a private network), not the Host header:
        # authlib would refuse plain http except on loopback.
        OAuth2Request.__init__(
            self, method=request.method, uri="https://plaudit.invalid" + request.path, headers=request.headers
        )
        self._request = request
        self.payload = FormPayload(request)


class PlauditAuthorizationServer(AuthorizationServer):  # type: ignore[misc]
    def create_oauth2_request(self, _request: Any) -> PlauditOAuth2Request:
        return PlauditOAuth2Request()

    def answer(self, respond: Callable[[], Response]) -> Response:
        """authlib's answer; a header that it cannot parse (Basic that is not text) is an invalid client."""
        if any(len(values) > 1 for _name, values in request.form.lists()):
            return self.refuse("A parameter was sent more than once")
        try:
            return respond()
        except ValueError:
            return self.handle_response(401, {"error": "invalid_client"}, [("Content-Type", "application/json")])

    def refuse(self, why: str) -> Response:
        """A request that the client must send otherwise."""
        error = InvalidRequestError(description=why)
        return self.handle_response(400, dict(error.get_body()), error.get_headers())

    def handle_response(self, status_code: int, payload: Any, headers: Any) -> Response:
        if isinstance(payload, dict) and "error" in payload:
            g.problem_code = payload["error"]
            if payload["error"] == "invalid_client":
                payload["error_description"] = "The client id or secret is wrong, or the client is revoked"
            payload = {
                **payload,
                "type": f"urn:plaudit:problem:{payload['error']}",
                "title": payload["error"].replace("_", " "),
                "status": status_code,
                "detail": payload.get("error_description") or payload["error"].replace("_", " "),
                "code": payload["error"],
                "request_id": g.request_id,
            }
        body = orjson.dumps(payload) if isinstance(payload, dict) else payload
        challenge = {"WWW-Authenticate": 'Basic realm="plaudit"'} if status_code == 401 else {}
        return Response(body, status=status_code, headers=dict(headers) | challenge)


def authorization_server(app: Flask) -> PlauditAuthorizationServer:
    server = PlauditAuthorizationServer(app, query_client=_query_client, save_token=lambda *_: None)
    server.register_token_generator("default", _generate_token)
    server.register_grant(ClientCredentials)
    server.register_endpoint(Revocation)
    return server


@blueprint.post("/oauth/token")
@blueprint.doc(
    summary="An access token for a client",
    description="grant_type=client_credentials, with HTTP Basic or client_id and client_secret in the body; "
    "optionally scope.",
    requestBody=form(grant_type={**TEXT, "enum": ["client_credentials"]}, scope=TEXT),
    security=BY_BASIC_OR_BODY,
)
@blueprint.alt_response(400, schema=OAuthErrorOut)
@blueprint.alt_response(401, schema=OAuthErrorOut)
@blueprint.response(200, AccessTokenOut)
@public
def token() -> ResponseReturnValue:
    _throttle()
    server = _server()
    if not request.form.get("grant_type"):  # RFC 6749: what is sent without a value counts as missing
        return server.refuse("grant_type: missing")
    return server.answer(server.create_token_response)


@blueprint.post("/oauth/revoke")
@blueprint.doc(
    summary="Revoke one of the client's own access tokens",
    requestBody=form(token=TEXT, token_type_hint=TEXT),
    security=BY_BASIC_OR_BODY,
)
@blueprint.alt_response(400, schema=OAuthErrorOut)
@blueprint.alt_response(401, schema=OAuthErrorOut)
@blueprint.response(200, {"type": "object"}, description="It is no longer valid, in any process")
@public
def revoke() -> ResponseReturnValue:
    _throttle()
    server = _server()
    return server.answer(lambda: server.create_endpoint_response("revocation"))


@blueprint.get("/.well-known/jwks.json")
@blueprint.doc(summary="The keys that access tokens are signed with")
@blueprint.response(200, SigningKeysOut)
@public
def jwks() -> ResponseReturnValue:
    answer = jsonify({"keys": essentials().signer.jwks()})
    answer.headers["Cache-Control"] = "public, max-age=300"
    return answer


@blueprint.get("/.well-known/oauth-authorization-server")
@blueprint.doc(summary="Authorization server metadata (RFC 8414)")
@blueprint.response(200, AuthorizationServerOut)
@public
def metadata() -> ResponseReturnValue:
    issuer = _settings().public_url
    methods = ["client_secret_basic", "client_secret_post"]
    return jsonify(
        {
            "issuer": issuer,
            "token_endpoint": f"{issuer}/oauth/token",
            "token_endpoint_auth_methods_supported": methods,
            "revocation_endpoint": f"{issuer}/oauth/revoke",
            "revocation_endpoint_auth_methods_supported": methods,
            "jwks_uri": f"{issuer}/.well-known/jwks.json",
            "grant_types_supported": ["client_credentials"],
            "response_types_supported": [],
            "scopes_supported": [scope.value for scope in Scope],
            "access_token_signing_alg_values_supported": [ALGORITHM],
            "service_documentation": f"{issuer}/api/docs",
        }
    )


def _server() -> PlauditAuthorizationServer:
    server: PlauditAuthorizationServer = services().oauth
    return server


def _throttle() -> None:
    throttle.require("oauth", TRIES_PER_MINUTE, caller_network(), detail="Too many token requests from this address")


def _query_client(client_id: str) -> OAuthClient:
    """The client; for an unknown id one that accepts no secret, so that both get the same error."""
    client = credentials.find_client(client_id, network=caller_network())
    return OAuthClient(client) if client is not None else UnknownClient()


def _generate_token(*, grant_type: str, client: OAuthClient, scope: str | None = None, **_rest: Any) -> dict[str, Any]:  # noqa: ARG001
    granted = client.get_allowed_scope(scope or "")
    credentials.record_use(client.client, now=utcnow())
    return {
        "token_type": "Bearer",
        "access_token": credentials.client_token(client.client, granted, signer=essentials().signer, now=utcnow()),
        "expires_in": credentials.CLIENT_TOKEN_TTL_S,
        "scope": granted,
    }


def _settings() -> Settings:
    return essentials().settings
