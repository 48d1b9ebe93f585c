"""The API documentation, generated from the schemas and routes: as OpenAPI 3.1 and as a page."""

import re
from collections import defaultdict
from functools import cache
from typing import Any

from flask import Flask, Response, jsonify, make_response, render_template

from app.api.blueprint import PlauditApi
from app.http.rights import Access, May, declared, public

PAGE_CSP = "default-src 'none'; style-src 'self'; img-src 'self'; frame-ancestors 'none'; base-uri 'none'"


def install(app: Flask, api: PlauditApi) -> None:
    @cache
    def specification() -> dict[str, Any]:
        return with_security(app, api.spec.to_dict())

    @app.get("/api/openapi.json")
    @public
    def openapi() -> Response:
        return jsonify(specification())

    @app.get("/api/docs")
    @public
    def docs() -> Response:
        spec = specification()
        page = make_response(render_template("docs.html", spec=spec, groups=group_by_tag(spec)))
        page.headers["Content-Security-Policy"] = PAGE_CSP
        return page

    declare_static(app)


def with_security(app: Flask, spec: dict[str, Any]) -> dict[str, Any]:
    """Add to every operation which credentials it accepts, as its route declares."""
    for rule in app.url_map.iter_rules():
        path = re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", rule.rule)
        for method in rule.methods or ():
            operation = spec["paths"].get(path, {}).get(method.lower())
            if operation is not None:
                operation["security"] = _security(declared(app.view_functions[rule.endpoint]))
    return spec


def _security(access: Access | May | None) -> list[dict[str, list[str]]]:
    if access is Access.KEY:
        return [{"key": []}]
    if isinstance(access, May):
        security: list[dict[str, list[str]]] = [{"client": [scope.value]} for scope in sorted(access.scopes)]
        return [*security, {"user": []}] if access.roles else security
    return []


def declare_static(app: Flask) -> None:
    app.view_functions["static"] = public(app.view_functions["static"])


def group_by_tag(spec: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for path, operations in spec["paths"].items():
        shared = operations.get("parameters", [])
        for method, operation in operations.items():
            if method == "parameters":
                continue
            groups[operation.get("tags", ["other"])[0]].append(
                {
                    **operation,
                    "path": path,
                    "method": method.upper(),
                    "parameters": shared + operation.get("parameters", []),
                }
            )
    return groups
