"""flask-smorest, with our own strict body parser and our own errors."""

import contextlib
import re
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import marshmallow as ma
from flask import Flask, Request, request
from flask_smorest import Api
from flask_smorest import Blueprint as SmorestBlueprint
from webargs.flaskparser import FlaskParser

from analytics.metrics import Metric
from app.api import patterns
from app.http import body
from app.http.paging import MAX_SLICE
from tenants.credentials import Scope
from tenants.errors import Invalid

MAX_CACHED_QUERY_BYTES = 300
MAX_CACHED_QUERIES = 2_000


class StrictParser(FlaskParser):
    # A schema's rule for unknown fields applies to the query too, so that a misspelt parameter is an error.
    DEFAULT_UNKNOWN_BY_LOCATION = {**FlaskParser.DEFAULT_UNKNOWN_BY_LOCATION, "query": None}  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__()
        self._queries: OrderedDict[tuple[int, bytes], dict[str, Any]] = OrderedDict()

    def parse(self, argmap: Any, req: Any = None, *, location: str | None = None, **options: Any) -> Any:
        """Cache valid queries: boards are requested with the same few, over and over."""
        key = (id(argmap), request.query_string)
        if location != "query" or len(key[1]) > MAX_CACHED_QUERY_BYTES:
            return super().parse(argmap, req, location=location, **options)
        parsed = self._queries.get(key)
        if parsed is None:
            parsed = self._queries[key] = super().parse(argmap, req, location=location, **options)
            if len(self._queries) > MAX_CACHED_QUERIES:
                with contextlib.suppress(KeyError):  # another thread has removed it
                    self._queries.popitem(last=False)
        return dict(parsed)

    def _raw_load_json(self, req: Request) -> Any:
        if not body.has_body(req.environ) and "CONTENT_TYPE" not in req.environ:
            return {}  # what is missing is said by name
        value = body.read_json(req.environ)
        if not isinstance(value, dict):
            raise Invalid.field("body", "must be a JSON object", detail="The body must be a JSON object")
        return value


class Blueprint(SmorestBlueprint):  # type: ignore[misc]
    ARGUMENTS_PARSER = StrictParser()


def _rfc3339(moment: datetime) -> str:
    """All times are shown in UTC, in one format."""
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


ma.fields.DateTime.SERIALIZATION_FUNCS["iso"] = _rfc3339


def metric_field(metrics: Iterable[Metric], **options: Any) -> ma.fields.String:
    """The name of one of these metrics."""
    return ma.fields.String(validate=ma.validate.OneOf([metric.name for metric in metrics]), **options)


class Schema(ma.Schema):
    """The base of every request and response. Unknown fields are refused, so that a misspelt one is an error.

    In the contract every field of an answer is always there, unless its metadata have `x-sometimes`.
    """

    class Meta:
        unknown = ma.RAISE


def ref(schema: str) -> dict[str, str]:
    """A schema of the document, by its name."""
    return {"$ref": f"#/components/schemas/{schema}"}


SOMETIMES = {"x-sometimes": True}


# For the contract; `tenants.settings.is_origin` decides.
ORIGIN = {"pattern": r"^https?://(?:[a-z0-9.-]+|\[[0-9a-f:]+\])(?::[1-9][0-9]{0,4})?$"}


def matching(regex: "re.Pattern[str]", **metadata: Any) -> dict[str, Any]:
    """The metadata of a field whose whole text the domain compares with a regular expression."""
    return {"pattern": patterns.whole(regex.pattern), **metadata}


def load(schema: Schema, values: Mapping[str, Any]) -> dict[str, Any]:
    """Validate these values with a schema, where flask-smorest does not."""
    try:
        loaded: dict[str, Any] = schema.load(values)
    except ma.ValidationError as error:
        messages = {name: [str(text) for text in texts] for name, texts in error.messages_dict.items()}
        raise Invalid.fields(messages) from None
    return loaded


class StrictBoolean(ma.fields.Boolean):
    """true or false; no text or number instead."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> bool:
        if not isinstance(value, bool):
            raise self.make_error("invalid", input=value)
        return bool(super()._deserialize(value, attr, data, **kwargs))


class SliceIn(Schema):
    """How much of a list to return, and where to continue."""

    cursor = ma.fields.String(
        validate=ma.validate.Length(1, 512), metadata={"description": "next_cursor of the answer before"}
    )
    limit = ma.fields.Integer(load_default=20, validate=ma.validate.Range(1, MAX_SLICE))


class ProblemSchema(Schema):
    """The format of every error (RFC 9457)."""

    type = ma.fields.String(required=True)
    title = ma.fields.String(required=True)
    status = ma.fields.Integer(required=True)
    detail = ma.fields.String(required=True)
    code = ma.fields.String(required=True, metadata={"description": "stable, snake_case"})
    request_id = ma.fields.String(required=True)
    errors = ma.fields.Dict(
        keys=ma.fields.String(),
        values=ma.fields.List(ma.fields.String()),
        metadata={"description": "field → messages, when fields are not valid", **SOMETIMES},
    )
    page = ma.fields.String(metadata={"description": "of duplicate_url: the page that has the address", **SOMETIMES})
    suspended_until = ma.fields.AwareDateTime(
        allow_none=True,
        metadata={"description": "with the code `suspended`: until when; null: without an end", **SOMETIMES},
    )


SECURITY_SCHEMES: dict[str, dict[str, Any]] = {
    "client": {
        "type": "oauth2",
        "flows": {"clientCredentials": {"tokenUrl": "/oauth/token", "scopes": {s.value: s.value for s in Scope}}},
    },
    "user": {
        "type": "http",
        "scheme": "bearer",
        "bearerFormat": "JWT",
        "description": "an access token; or a static token (`plt_…`), which may do what its scopes allow",
    },
    "key": {"type": "apiKey", "in": "header", "name": "X-Plaudit-Key"},
    "key_in_query": {"type": "apiKey", "in": "query", "name": "key"},
    "client_login": {"type": "http", "scheme": "basic", "description": "client_id and client_secret"},
    "operator": {"type": "http", "scheme": "bearer", "description": "PLAUDIT_METRICS_TOKEN; not from this machine"},
}


def _ecma_pattern(_converter: Any, field: ma.fields.Field[Any], **_rest: Any) -> dict[str, Any]:
    """How apispec documents a `Regexp`."""
    regexes = [check.regex.pattern for check in field.validators if isinstance(check, ma.validate.Regexp)]
    return {"pattern": patterns.start(str(regexes[0]))} if regexes else {}


class PlauditApi(Api):  # type: ignore[misc]
    ERROR_SCHEMA = ProblemSchema
    DEFAULT_ERROR_RESPONSE_NAME = None  # app/api/openapi.py adds the errors

    def __init__(self, app: Flask) -> None:
        app.config.update(
            API_TITLE="Plaudit",
            API_VERSION="v1",
            OPENAPI_VERSION="3.1.0",
            API_SPEC_OPTIONS={
                "info": {
                    "description": "Which content matters, in which space, this week, and who contributed.",
                    "license": {"name": "MIT", "identifier": "MIT"},
                },
            },
        )
        super().__init__(app)
        self.ma_plugin.converter.add_attribute_function(_ecma_pattern)
        for name, scheme in SECURITY_SCHEMES.items():
            self.spec.components.security_scheme(name, scheme)

    def _register_error_handlers(self) -> None:
        """Install none of flask-smorest's: app/http/errors.py answers every error."""
