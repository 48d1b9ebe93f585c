"""The API documentation, generated from the schemas and routes: as OpenAPI 3.1 and as a page."""

from collections import defaultdict
from copy import deepcopy
from functools import cache
from typing import Any

from flask import Flask, Response, jsonify, make_response, render_template

from app.api import openapi
from app.api.blueprint import PlauditApi
from app.http.rights import public
from app.http.services import essentials

PAGE_CSP = "default-src 'none'; style-src 'self'; img-src 'self'; frame-ancestors 'none'; base-uri 'none'"


def install(app: Flask, api: PlauditApi) -> None:
    @cache
    def specification_at(public_url: str) -> dict[str, Any]:
        return openapi.complete(app, deepcopy(api.spec.to_dict()), public_url=public_url)

    def specification() -> dict[str, Any]:
        return specification_at(essentials().settings.public_url)

    @app.get("/api/openapi.json")
    @public
    def document() -> Response:
        return jsonify(specification())

    @app.get("/api/docs")
    @public
    def docs() -> Response:
        spec = specification()
        page = make_response(render_template("docs.html", spec=spec, groups=group_by_tag(spec)))
        page.headers["Content-Security-Policy"] = PAGE_CSP
        return page

    declare_static(app)


def declare_static(app: Flask) -> None:
    app.view_functions["static"] = public(app.view_functions["static"])


def group_by_tag(spec: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for path, operations in spec["paths"].items():
        shared = operations.get("parameters", [])
        for method, operation in operations.items():
            if method == "parameters":
                continue
            parameters = [resolved(spec, one) for one in shared + operation.get("parameters", [])]
            responses = {status: resolved(spec, one) for status, one in operation["responses"].items()}
            groups[operation.get("tags", ["other"])[0]].append(
                {
                    **operation,
                    "path": path,
                    "method": method.upper(),
                    "parameters": parameters,
                    "responses": responses,
                }
            )
    return groups


def resolved(spec: dict[str, Any], part: dict[str, Any]) -> dict[str, Any]:
    """A parameter or response, wherever it is described."""
    if "$ref" not in part:
        return part
    _, _, kind, name = part["$ref"].split("/")
    found: dict[str, Any] = spec["components"][kind][name]
    return found
