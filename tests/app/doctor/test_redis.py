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

NOWHERE = "redis://127.0.0.1:1/0"


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
    assert redis.unreachable(installation) == {}
    for check in (redis.supported_version, redis.eviction, redis.latency):
        assert bad(check(installation)) == [], check.__name__


@pytest.mark.parametrize(
    ("away", "name", "why", "advice"),
    [
        ({"queue_redis_url": NOWHERE}, "queue", "workers have no queue", "start it, or check PLAUDIT_QUEUE_REDIS_URL"),
        ({"redis_url": NOWHERE}, "boards", "board reads fall back", "start it, or check REDIS_URL"),
        (
            {"redis_url": NOWHERE, "queue_redis_url": NOWHERE},
            "boards and queue",
            "board",
            "start it, or check REDIS_URL",
        ),
    ],
)
def test_a_server_that_is_away_is_a_problem_with_its_own_reason(
    settings: Settings, tmp_path: Path, away: dict[str, str], name: str, why: str, advice: str
) -> None:
    installation = installations.of(replace(settings, **away), tmp_path, is_local=False, now=utcnow())  # type: ignore[arg-type]
    found = redis.unreachable(installation)
    assert found.keys() == {name}
    assert (found[name].level, found[name].advice) == (Level.PROBLEM, advice)
    assert found[name].what == f"The server of the {name} cannot be reached (ConnectionError)"
    assert found[name].why.startswith(why)
    assert ("queue" in found[name].why) == ("queue" in name)
    known = replace(installation, unreachable=frozenset(found))
    assert redis.has_queue(known) == ("queue" not in name)
    assert redis.has_boards(known) == ("boards" not in name)
    assert name not in dict(redis.servers(known))


def test_each_primary_of_a_cluster_is_examined(settings: Settings, tmp_path: Path) -> None:
    def examined(url: str) -> Installation:
        on_cluster = replace(settings, redis_url=url)
        return installations.of(on_cluster, tmp_path, is_local=False, now=utcnow())

    with running_nodes() as nodes:
        installation = examined(url_of(nodes[:1]))
        assert redis.unreachable(installation) == {}
        for check in (redis.supported_version, redis.eviction, redis.latency):
            assert bad(check(installation)) == [], check.__name__
        assert bad(redis.cluster(installation)) == [
            (Level.WARN, "The boards are on a cluster of 3 primaries without replicas")
        ]
        assert len(list(redis.supported_version(installation))) == 4, "and the queue's"
        nodes[2].kill()
        away = f"boards at 127.0.0.1:{nodes[2].port}"
        found = redis.unreachable(installation)
        assert found.keys() == {away}
        assert found[away].what == f"The server of the {away} cannot be reached (ConnectionError)"
        assert "queue" not in found[away].why + found[away].advice
        known = replace(installation, unreachable=frozenset(found))
        assert (redis.has_queue(known), redis.has_boards(known)) == (True, False)
        assert len(list(redis.supported_version(known))) == 3, "the others"
    gone = examined("redis+cluster://127.0.0.1:1")
    found = redis.unreachable(gone)
    assert [finding.what.partition(" can")[0] for finding in found.values()] == ["No node of the cluster of the boards"]
    known = replace(gone, unreachable=frozenset(found))
    assert list(redis.cluster(known)) == []
    assert [name for name, _ in redis.servers(known)] == ["queue"]


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
