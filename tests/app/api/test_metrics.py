"""Prometheus metrics: for operators only, of all processes."""

from app.settings import Settings
from tests.app.conftest import with_settings


def test_metrics_are_for_this_machine_or_the_token(settings: Settings) -> None:
    client = with_settings(settings)
    client.get("/health/live")
    assert 'plaudit_http_requests_total{method="GET",route="/health/live",status="200"}' in client.get("/metrics").text
    assert client.get("/metrics", environ_base={"REMOTE_ADDR": "10.1.2.3"}).status_code == 403
    assert client.get("/metrics", headers={"X-Forwarded-For": "127.0.0.1"}).status_code == 403
    for behind_a_proxy in ({"proxy_hops": 1}, {"has_public_url": True}):
        proxied = with_settings(settings, **behind_a_proxy)
        assert proxied.get("/metrics").status_code == 403, "a proxy that does not say for whom"
        assert proxied.get("/metrics", headers={"X-Forwarded-For": "127.0.0.1"}).status_code == 403
        proxied = with_settings(settings, metrics_token="sesame-" * 5, **behind_a_proxy)
        assert proxied.get("/metrics", headers={"Authorization": "Bearer " + "sesame-" * 5}).status_code == 200
    locked = with_settings(settings, metrics_token="sesame-" * 5)
    assert locked.get("/metrics").status_code == 200, "from loopback, or with the token"
    away = {"REMOTE_ADDR": "10.1.2.3"}
    assert locked.get("/metrics", environ_base=away).status_code == 403
    assert (
        locked.get("/metrics", environ_base=away, headers={"Authorization": "Bearer " + "sesame-" * 5}).status_code
        == 200
    )
