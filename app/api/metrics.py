"""Prometheus metrics of all processes together."""

from flask import Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest, multiprocess
from prometheus_client import REGISTRY as THIS_PROCESS

from app.api.blueprint import Blueprint
from app.api.service_gauges import ServiceGauges, forget_ended_processes
from app.http import request_counts
from app.http.edge import quiet
from app.http.rights import operator
from app.http.services import essentials

blueprint = Blueprint("metrics", __name__, description="For Prometheus")

_whole_service = CollectorRegistry()
_whole_service.register(ServiceGauges())


@blueprint.get("/metrics")
@quiet
@blueprint.response(200, {"type": "string"}, content_type="text/plain", description="Prometheus text format")
@operator
def metrics() -> Response:
    """Counters and timings of every process. Only from loopback, or with the metrics token."""
    request_counts.write()
    settings = essentials().settings
    registry = THIS_PROCESS
    if settings.metrics_dir is not None:
        forget_ended_processes(settings.metrics_dir)
        registry = CollectorRegistry()
        multiprocess.MultiProcessCollector(registry, path=str(settings.metrics_dir))  # type: ignore[no-untyped-call]
    text = generate_latest(registry) + generate_latest(_whole_service)
    return Response(text, content_type=CONTENT_TYPE_LATEST)
