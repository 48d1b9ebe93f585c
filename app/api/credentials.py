"""OAuth clients and publishable keys, for a tenant's admins."""

from typing import Any

import marshmallow as ma

from app.api.blueprint import ORIGIN, Blueprint, Schema, SliceIn, StrictBoolean
from app.http import paging
from app.http.rights import May, requires
from app.http.services import services
from app.http.transactions import actor_tx, audit, idempotent
from tenants import credentials, logs
from tenants.credentials import NewSecret, PublishableKey, Scope
from tenants.db import utcnow
from tenants.security_events import SecurityEvent

blueprint = Blueprint("credentials", __name__, url_prefix="/api/v1", description="Clients and keys")

SCOPES = [scope.value for scope in Scope]
NAME = {"minLength": 1, "maxLength": credentials.MAX_NAME_CHARS}


class ClientIn(Schema):
    name = ma.fields.String(required=True, metadata=NAME)
    scopes = ma.fields.List(ma.fields.String(metadata={"enum": SCOPES}), required=True, metadata={"minItems": 1})


class ClientOut(Schema):
    client_id = ma.fields.String(attribute="id", required=True)
    name = ma.fields.String()
    scopes = ma.fields.List(ma.fields.String(metadata={"enum": SCOPES}))
    created_at = ma.fields.AwareDateTime()
    last_used_at = ma.fields.AwareDateTime(allow_none=True)


class NewClientOut(ClientOut):
    client_secret = ma.fields.String(required=True, metadata={"description": "shown only once"})


class ClientsOut(Schema):
    items = ma.fields.List(ma.fields.Nested(ClientOut))
    next_cursor = ma.fields.String(allow_none=True)


class KeyIn(Schema):
    name = ma.fields.String(load_default="Browser", metadata=NAME)
    origins = ma.fields.List(
        ma.fields.String(metadata=ORIGIN),
        required=True,
        metadata={"description": "such as https://wiki.example", "minItems": 1, "maxItems": credentials.MAX_ORIGINS},
    )
    auto_pages = StrictBoolean(
        load_default=False, metadata={"description": "whether the first view of an unknown address makes its page"}
    )


class KeyOut(Schema):
    key = ma.fields.String(attribute="id", required=True)
    name = ma.fields.String()
    origins = ma.fields.List(ma.fields.String())
    auto_pages = ma.fields.Boolean()
    created_at = ma.fields.AwareDateTime()


class NewKeyOut(KeyOut):
    signing_secret = ma.fields.String(
        required=True,
        metadata={"description": "with which the site's server signs for its readers; shown only once"},
    )


class KeysOut(Schema):
    items = ma.fields.List(ma.fields.Nested(KeyOut))
    next_cursor = ma.fields.String(allow_none=True)


@blueprint.get("/clients")
@requires(May.MANAGE_CREDENTIALS)
@blueprint.arguments(SliceIn, location="query")
@blueprint.response(200, ClientsOut)
def list_clients(query: dict[str, Any]) -> Any:
    """The clients that are not revoked, by id."""
    asked = paging.slice_of(query, id=str)
    with actor_tx() as tx:
        return asked.answer(credentials.list_clients(tx, after=asked.after, limit=asked.fetch))


@blueprint.post("/clients")
@requires(May.MANAGE_CREDENTIALS)
@blueprint.arguments(ClientIn)
@blueprint.response(201, NewClientOut)
def create_client(body: dict[str, Any]) -> Any:
    """Create a client. Its secret is in this answer only."""
    with actor_tx() as tx:
        created = credentials.create_client(tx, name=body["name"], scopes=body["scopes"], now=utcnow())
    logs.audit(SecurityEvent.CLIENT_CREATED, client=created.client.id, scopes=created.client.scopes)
    return _with_secret(created)


@blueprint.post("/clients/<client_id>/rotate")
@requires(May.MANAGE_CREDENTIALS)
@blueprint.response(200, NewClientOut)
def rotate_client(client_id: str) -> Any:
    """Create a new secret; the old one is valid for another day."""
    with actor_tx() as tx:
        rotated = credentials.rotate_client(tx, client_id, now=utcnow())
    logs.audit(SecurityEvent.CLIENT_ROTATED, client=client_id)
    return _with_secret(rotated)


@blueprint.delete("/clients/<client_id>")
@requires(May.MANAGE_CREDENTIALS)
@idempotent
@blueprint.response(204)
def revoke_client(client_id: str) -> None:
    """Revoke a client: its secret and its tokens are no longer valid."""
    with actor_tx() as tx:
        credentials.revoke_client(tx, client_id, now=utcnow())
    audit(SecurityEvent.CLIENT_REVOKED, client=client_id)


@blueprint.get("/keys")
@requires(May.MANAGE_CREDENTIALS)
@blueprint.arguments(SliceIn, location="query")
@blueprint.response(200, KeysOut)
def list_keys(query: dict[str, Any]) -> Any:
    """The publishable keys that are not revoked, by id."""
    asked = paging.slice_of(query, id=str)
    with actor_tx() as tx:
        return asked.answer(credentials.list_keys(tx, after=asked.after, limit=asked.fetch))


@blueprint.post("/keys")
@requires(May.MANAGE_CREDENTIALS)
@blueprint.arguments(KeyIn)
@blueprint.response(201, NewKeyOut)
def create_key(body: dict[str, Any]) -> Any:
    """Create a key that browsers may send from these origins. Its signing secret is in this answer only."""
    with actor_tx() as tx:
        created = credentials.create_key(tx, signer=services().signer, **body, now=utcnow())
    logs.audit(SecurityEvent.KEY_CREATED, key=created.id[-6:], origins=created.origins)
    return _with_signing_secret(created)


@blueprint.post("/keys/<key_id>/signing-secret")
@requires(May.MANAGE_CREDENTIALS)
@blueprint.response(200, NewKeyOut)
def change_signing_secret(key_id: str) -> Any:
    """Create a new secret that signs for readers; what the old one has signed is no longer valid."""
    with actor_tx() as tx:
        changed = credentials.change_reader_salt(tx, key_id)
    logs.audit(SecurityEvent.KEY_SIGNING_SECRET_CHANGED, key=key_id[-6:])
    return _with_signing_secret(changed)


@blueprint.delete("/keys/<key_id>")
@requires(May.MANAGE_CREDENTIALS)
@idempotent
@blueprint.response(204)
def revoke_key(key_id: str) -> None:
    """Revoke a key: it is no longer valid."""
    with actor_tx() as tx:
        credentials.revoke_key(tx, key_id, now=utcnow())
    audit(SecurityEvent.KEY_REVOKED, key=key_id[-6:])


def _with_signing_secret(key: PublishableKey) -> dict[str, Any]:
    secret = services().reader_signatures.secret_of(key.id, key.reader_salt)
    shown = {"id": key.id, "name": key.name, "origins": key.origins, "auto_pages": key.auto_pages}
    return {**shown, "created_at": key.created_at, "signing_secret": secret}


def _with_secret(new: NewSecret) -> dict[str, Any]:
    client = new.client
    return {
        "id": client.id,
        "client_secret": new.secret,
        "name": client.name,
        "scopes": client.scopes,
        "created_at": client.created_at,
        "last_used_at": client.last_used_at,
    }
