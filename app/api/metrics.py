"""Prometheus metrics of all processes together."""

from flask import Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest, multiprocess
from prometheus_client import REGISTRY as THIS_PROCESS

from app.api.blueprint import Blueprint
from app.http import request_counts
from app.http.edge import quiet
from app.http.rights import operator
from app.http.services import essentials

blueprint = Blueprint("metrics", __name__, description="For Prometheus")


@blueprint.get("/metrics")
@quiet
@blueprint.doc(responses={"200": {"description": "Prometheus text format"}})
@operator
def metrics() -> Response:
    """Counters and timings of every process. Only from loopback, or with the metrics token."""
    request_counts.write()
    settings = essentials().settings
    registry = THIS_PROCESS
    if settings.metrics_dir is not None:
        registry = CollectorRegistry()
        multiprocess.MultiProcessCollector(registry, path=str(settings.metrics_dir))  # type: ignore[no-untyped-call]
    return Response(generate_latest(registry), content_type=CONTENT_TYPE_LATEST)
