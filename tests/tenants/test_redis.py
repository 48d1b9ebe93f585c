import pytest

from app.settings import Settings
from tenants import redis
from tenants.redis_cluster import GuardedCluster


def test_keys_name_their_tenant() -> None:
    assert redis.key("lb", "demo", "tenant", "7d", "likes") == "lb:demo:tenant:7d:likes"
    assert redis.key("lb", "_all", "global") == "lb:_all:global"
    for hostile in ("a:b", "", "Demo"):
        with pytest.raises(ValueError, match="not a tenant id"):
            redis.key("lb", hostile)


def test_the_boards_may_be_on_a_cluster_and_the_queue_beside_it() -> None:
    redis.configure(boards_url="redis+cluster://127.0.0.1:1", queue_url="redis://127.0.0.1:2/0")
    assert isinstance(redis.boards(), GuardedCluster)
    assert not isinstance(redis.queue(), GuardedCluster)


def test_a_server_answers_what_has_no_key_once(settings: Settings) -> None:
    client = redis.make_client(settings.queue_redis_url or "", timeout_s=5)
    (info,) = redis.on_every_server(client, "INFO", "server")
    assert info["run_id"]
