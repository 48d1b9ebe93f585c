"""The contract, generated from the code's own schemas: as OpenAPI 3.1 and as a page to read."""

from collections import defaultdict
from typing import Any

from flask import Flask, Response, jsonify, make_response, render_template

from app.api.blueprint import PlauditApi
from app.auth import public

PAGE_CSP = "default-src 'none'; style-src 'self'; img-src 'self'; frame-ancestors 'none'; base-uri 'none'"


def install(app: Flask, api: PlauditApi) -> None:
    @app.get("/api/openapi.json")
    @public
    def openapi() -> Response:
        return jsonify(api.spec.to_dict())

    @app.get("/api/docs")
    @public
    def docs() -> Response:
        spec = api.spec.to_dict()
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
            groups[operation.get("tags", ["other"])[0]].append(
                {
                    **operation,
                    "path": path,
                    "method": method.upper(),
                    "parameters": shared + operation.get("parameters", []),
                }
            )
    return groups
