from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict

from app.settings import Settings, SettingsError
from tenants.engines import make_engine


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PLAUDIT_PORT", "eight"),
        ("PLAUDIT_PORT", "70000"),
        ("PLAUDIT_PORT", "²"),
        ("PLAUDIT_METRICS_PORT", "0"),
        ("PLAUDIT_PROXY_HOPS", "-1"),
        ("PLAUDIT_DRAIN_S", "301"),
        ("DATABASE_URL", "mysql://me:hunter2@host/db"),
        ("DATABASE_URL", "postgresql://host"),
        ("DATABASE_URL", "postgresql://h:port/db"),
        ("DATABASE_URL", "postgresql://me:hunter2@a:1,b:port/db"),
        ("DATABASE_URL", "postgresql://me:hunter2@a:1,,b:2/db"),
        ("DATABASE_URL", "postgresql://me:hunter2@a:1,b:2/"),
        ("DATABASE_URL", "postgresql://me:hunter2@a:1,b:2/db?host=c"),
        ("DATABASE_URL", "postgresql:/me:hunter2@host/db"),
        ("DATABASE_URL", "postgresql://me:hunter2@host/db?bogus=1"),
        ("DATABASE_URL", "postgresql://me@host/db?password=hunter2"),
        ("DATABASE_URL", "postgresql://me:hunter2@host/db?host=a&port=b"),
        ("DATABASE_URL", f"postgresql://me:hunter2@{'a' * 300}/db"),
        ("DATABASE_URL", "postgresql://me:hunter2@host/d\udcffb"),
        ("PLAUDIT_PORT", "1" * 5_000),
        ("PLAUDIT_HOST", "a" * 300),
        ("PLAUDIT_DATABASE_POOL", "0"),
        ("REDIS_URL", "redis://me:hunter2@host/0?socket_timeout=abc"),
        ("REDIS_URL", "redis://me:hunter2@host/0?bogus=1"),
        ("REDIS_URL", "unix:///run/redis.sock?db=x"),
        ("REDIS_URL", "rediss+cluster://me:hunter2@a:1,b:2?ssl_cert_reqs=x"),
        ("REDIS_URL", "redis+cluster://me:hunter2@..:1"),
        ("PLAUDIT_QUEUE_REDIS_URL", "redis://me:hunter2@host/0?bogus=1"),
        ("SENTRY_DSN", "https://hunter2@host/project"),
        ("SENTRY_DSN", "https://host/1"),
        ("PLAUDIT_SECRET_KEY", "\udcff" * 40),
        ("REDIS_URL", "localhost:6379"),
        ("PLAUDIT_PUBLIC_URL", "plaudit.example"),
        ("PLAUDIT_SECRET_KEY", "short"),
        ("LOG_FORMAT", "xml"),
    ],
)
def test_a_wrong_value_is_named_in_one_line(name: str, value: str) -> None:
    with pytest.raises(SettingsError) as refused:
        Settings.from_env({name: value})
    assert name in str(refused.value)
    assert "\n" not in str(refused.value)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    ("env", "drain_s"),
    [
        ({}, 0),
        ({"PLAUDIT_DRAIN_S": "30"}, 30),
        ({"PLAUDIT_PUBLIC_URL": "https://plaudit.example"}, 8),
        ({"PLAUDIT_PROXY_HOPS": "1"}, 8),
        ({"PLAUDIT_PROXY_HOPS": "1", "PLAUDIT_DRAIN_S": "0"}, 0),
    ],
)
def test_only_behind_a_proxy_a_process_drains_before_it_stops(env: dict[str, str], drain_s: int) -> None:
    assert Settings.from_env(env).drain_s == drain_s


def test_the_defaults_need_nothing() -> None:
    settings = Settings.from_env({})
    assert (settings.port, settings.live_port, settings.proxy_hops) == (8000, 8001, 0)
    assert settings.public_url == "http://127.0.0.1:8000"
    assert settings.live_url == "http://127.0.0.1:8001"


def test_behind_a_proxy_the_sockets_are_on_the_public_origin() -> None:
    assert Settings.from_env({"PLAUDIT_PUBLIC_URL": "https://p.example/"}).live_url == "https://p.example"
    assert Settings.from_env({"PLAUDIT_PUBLIC_URL": "https://p.example/"}).has_public_url
    assert not Settings.from_env({"PLAUDIT_PUBLIC_URL": ""}).has_public_url


@pytest.mark.parametrize(
    ("address", "read_as"),
    [
        (
            "postgresql://me:p,w%40@a:1,b.example:2/db",
            "postgresql://me:p,w%40@/db?host=a%2Cb.example&port=1%2C2&target_session_attrs=read-write",
        ),
        (
            "postgresql://me@[::1]:1,[fe80::1]/db?sslmode=require&target_session_attrs=any",
            "postgresql://me@/db?sslmode=require&target_session_attrs=any&host=::1%2Cfe80::1&port=1%2C",
        ),
        (
            "postgresql://me@/db?host=a,b&port=1,2",
            "postgresql://me@/db?host=a,b&port=1,2&target_session_attrs=read-write",
        ),
        (
            "postgresql://me@/db?host=a:1&sslmode=require&host=b:2",
            "postgresql://me@/db?sslmode=require&host=a%2Cb&port=1%2C2&target_session_attrs=read-write",
        ),
        ("postgresql://me@[::1]:5432/db", "postgresql://me@[::1]:5432/db"),
    ],
)
def test_several_hosts_of_a_database_are_read_by_our_driver_and_by_postgresql(address: str, read_as: str) -> None:
    names = ("DATABASE_URL", "PLAUDIT_SERVICE_DATABASE_URL", "PLAUDIT_DIRECT_DATABASE_URL")
    settings = Settings.from_env(dict.fromkeys(names, address))
    assert {settings.database_url, settings.service_database_url, settings.direct_database_url} == {read_as}
    assert Settings.from_env({"DATABASE_URL": read_as}).database_url == read_as  # as child processes are given it
    by_libpq = conninfo_to_dict(read_as)
    assert engine_arguments(read_as).items() >= {name: by_libpq[name] for name in ("host", "port", "dbname")}.items()


def engine_arguments(url: str) -> dict[str, Any]:
    engine = make_engine(url, pool_size=1)
    _, arguments = engine.dialect.create_connect_args(engine.url)
    return {**arguments, "port": str(arguments["port"])}


def test_the_direct_address_is_another_way_to_a_database_that_is_named() -> None:
    with pytest.raises(SettingsError, match="DATABASE_URL: set that too"):
        Settings.from_env({"PLAUDIT_DIRECT_DATABASE_URL": "postgresql://me:hunter2@host/db"})


def test_the_size_of_the_pools_can_be_set() -> None:
    settings = Settings.from_env({"PLAUDIT_WEB_THREADS": "32"})
    assert (settings.request_connections, settings.job_connections) == (17, 4)
    settings = Settings.from_env({"PLAUDIT_DATABASE_POOL": "1"})
    assert (settings.request_connections, settings.job_connections) == (1, 1)


def test_the_boards_may_be_on_a_cluster_if_the_queue_has_a_server_of_its_own() -> None:
    cluster, queue = "redis+cluster://me:hunter2@a:1,b:2,[::1]:3", "redis://queue:6379/0"
    settings = Settings.from_env({"REDIS_URL": cluster, "PLAUDIT_QUEUE_REDIS_URL": queue})
    assert (settings.redis_url, settings.queue_redis_url) == (cluster, queue)
    for name, env in {
        "PLAUDIT_QUEUE_REDIS_URL must be set beside a Redis Cluster": {"REDIS_URL": cluster},
        "PLAUDIT_QUEUE_REDIS_URL must be one Redis server": {"REDIS_URL": queue, "PLAUDIT_QUEUE_REDIS_URL": cluster},
        "REDIS_URL must name the nodes": {"REDIS_URL": "redis+cluster://a:1,b:x", "PLAUDIT_QUEUE_REDIS_URL": queue},
    }.items():
        with pytest.raises(SettingsError, match=name) as refused:
            Settings.from_env(env)
        assert "\n" not in str(refused.value)
        assert "hunter2" not in str(refused.value)
