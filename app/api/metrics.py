"""Prometheus metrics of all processes together."""

from flask import Response
from prometheus_client import CONTENT_TYPE_LATEST

from analytics.scraping import metrics_text
from app.api.blueprint import Blueprint
from app.http import request_counts
from app.http.edge import quiet
from app.http.rights import operator
from app.http.services import essentials

blueprint = Blueprint("metrics", __name__, description="For Prometheus")


@blueprint.get("/metrics")
@quiet
@blueprint.response(200, {"type": "string"}, content_type="text/plain", description="Prometheus text format")
@operator
def metrics() -> Response:
    """Counters and timings of every process. Only from loopback, or with the metrics token."""
    request_counts.write()
    return Response(metrics_text(essentials().settings.metrics_dir), content_type=CONTENT_TYPE_LATEST)
