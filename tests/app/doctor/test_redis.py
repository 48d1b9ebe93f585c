"""A Redis that is away, evicts, is full or slow."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.doctor import installation as installations
from app.doctor import redis
from app.doctor.findings import Level
from app.doctor.installation import Installation
from app.settings import Settings
from tenants.db import utcnow
from tests.app.doctor.conftest import bad
from tests.redis_nodes import running_nodes, url_of


@pytest.fixture
def installation(settings: Settings, tmp_path: Path) -> Installation:
    return installations.of(settings, tmp_path, is_local=False, now=utcnow())


@pytest.fixture
def client(installation: Installation) -> Iterator[Any]:
    """Its settings are restored."""
    names = ("maxmemory", "maxmemory-policy")
    redis: Any = installation.boards
    before = {name: redis.config_get(name)[name] for name in names}
    yield redis
    for name, value in before.items():
        redis.config_set(name, value)


def test_the_local_server_is_fine(installation: Installation) -> None:
    for check in (redis.reachable, redis.supported_version, redis.eviction, redis.latency):
        assert bad(check(installation)) == [], check.__name__


def test_a_server_that_is_away_is_a_problem(settings: Settings, tmp_path: Path) -> None:
    away = replace(settings, queue_redis_url="redis://127.0.0.1:1/0")
    ((level, what),) = bad(redis.reachable(installations.of(away, tmp_path, is_local=False, now=utcnow())))
    assert (level, what) == (Level.PROBLEM, "The server of the queue cannot be reached (ConnectionError)")


def test_each_primary_of_a_cluster_is_examined(settings: Settings, tmp_path: Path) -> None:
    def examined(url: str) -> Installation:
        on_cluster = replace(settings, redis_url=url)
        return installations.of(on_cluster, tmp_path, is_local=False, now=utcnow())

    with running_nodes() as nodes:
        installation = examined(url_of(nodes[:1]))
        for check in (redis.reachable, redis.cluster, redis.supported_version, redis.eviction, redis.latency):
            assert bad(check(installation)) == [], check.__name__
        (found,) = redis.cluster(installation)
        assert found.what == "The boards are on a cluster of 3 primaries and 0 replicas"
        assert len(list(redis.supported_version(installation))) == 4, "and the queue's"
        nodes[2].kill()
        ((level, what),) = bad(redis.reachable(installation))
        assert level is Level.PROBLEM
        assert what == f"The server of the boards at 127.0.0.1:{nodes[2].port} cannot be reached (ConnectionError)"
    ((level, what),) = bad(redis.reachable(examined("redis+cluster://127.0.0.1:1")))
    assert (level, what.partition(" can")[0]) == (Level.PROBLEM, "No node of the cluster of the boards")


@pytest.mark.parametrize(
    ("policy", "maximum", "level"),
    [("allkeys-lru", 2**30, Level.PROBLEM), ("allkeys-lru", 0, Level.WARN), ("volatile-ttl", 2**30, Level.WARN)],
)
def test_a_server_that_may_evict_is_found(
    installation: Installation, client: Any, policy: str, maximum: int, level: Level
) -> None:
    client.config_set("maxmemory", maximum)
    client.config_set("maxmemory-policy", policy)
    ((found, what),) = bad(redis.eviction(installation))
    assert (found, policy in what) == (level, True)


def test_a_server_that_is_nearly_full_is_found(installation: Installation, client: Any) -> None:
    client.config_set("maxmemory", int(client.info("memory")["used_memory"] * 1.05))
    client.config_set("maxmemory-policy", "noeviction")
    assert [level for level, _ in bad(redis.eviction(installation))] == [Level.WARN]


@pytest.mark.parametrize(
    ("info", "is_old"),
    [
        ({"redis_version": "6.0.16"}, True),
        ({"redis_version": "6.2.0"}, False),
        ({"redis_version": "7.2.4", "valkey_version": "7.2.5"}, False),
        ({"redis_version": "10.0.1"}, False),
    ],
)
def test_versions_are_compared_by_number(
    installation: Installation, monkeypatch: pytest.MonkeyPatch, info: dict[str, str], is_old: bool
) -> None:
    monkeypatch.setattr(installation.boards, "info", lambda _section: info)
    assert [level for level, _ in bad(redis.supported_version(installation))] == [Level.PROBLEM] * is_old


def test_a_slow_server_is_found(installation: Installation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis, "SLOW_MS", 0.0)
    assert [level for level, _ in bad(redis.latency(installation))] == [Level.WARN]
    monkeypatch.setattr(redis, "VERY_SLOW_MS", 0.0)
    assert [level for level, _ in bad(redis.latency(installation))] == [Level.PROBLEM]
