"""Prometheus metrics: for operators only, of all processes."""

from pathlib import Path
from typing import Any

from prometheus_client.mmap_dict import MmapedDict, mmap_key

from app.settings import Settings
from tests.app.conftest import with_settings


def test_metrics_are_for_this_machine_or_the_token(settings: Settings) -> None:
    client = with_settings(settings)
    client.get("/health/live")
    assert 'plaudit_http_requests_total{method="GET",route="/health/live",status="200"}' in client.get("/metrics").text
    assert client.get("/metrics", environ_base={"REMOTE_ADDR": "10.1.2.3"}).status_code == 403
    for header in ("X-Forwarded-For", "Forwarded", "Via", "X-Real-Ip"):
        assert client.get("/metrics", headers={header: "127.0.0.1"}).status_code == 403, header
    for behind_a_proxy in ({"proxy_hops": 1}, {"has_public_url": True}):
        proxied = with_settings(settings, **behind_a_proxy)
        refused = proxied.get("/metrics")
        assert refused.status_code == 403, "a proxy that does not say for whom"
        assert refused.get_json()["detail"] == "PLAUDIT_METRICS_TOKEN is not set, so nobody may read this from here"
        assert proxied.get("/metrics", headers={"X-Forwarded-For": "127.0.0.1"}).status_code == 403
        proxied = with_settings(settings, metrics_token="sesame-" * 5, **behind_a_proxy)
        assert proxied.get("/metrics", headers={"Authorization": "Bearer " + "sesame-" * 5}).status_code == 200
        assert proxied.get("/metrics").get_json()["detail"] == "Send PLAUDIT_METRICS_TOKEN as a bearer token"
    locked = with_settings(settings, metrics_token="sesame-" * 5)
    assert locked.get("/metrics").status_code == 200, "from loopback, or with the token"
    away = {"REMOTE_ADDR": "10.1.2.3"}
    assert locked.get("/metrics", environ_base=away).status_code == 403
    assert (
        locked.get("/metrics", environ_base=away, headers={"Authorization": "Bearer " + "sesame-" * 5}).status_code
        == 200
    )


def test_the_counters_of_all_processes_are_added_up(settings: Settings, tmp_path: Path) -> None:
    of_process: Any = MmapedDict  # which has no types
    key = mmap_key("plaudit_seen_total", "plaudit_seen_total", [], [], "Seen.")
    for process, seen in ((1, 3), (2, 4)):
        values = of_process(str(tmp_path / f"counter_{process}.db"))
        values.write_value(key, seen, 0)
        values.close()
    assert "plaudit_seen_total 7.0" in with_settings(settings, metrics_dir=tmp_path).get("/metrics").text
