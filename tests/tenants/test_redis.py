from urllib.parse import urlsplit

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


@pytest.mark.parametrize("wrong", ["password", "database"])
def test_an_address_that_redis_refuses_is_named_by_its_variable(wrong: str, settings: Settings) -> None:
    url = settings.redis_url or ""
    if not urlsplit(url).password:
        pytest.skip("the operator's server asks for no password")
    assert redis.refusal(REDIS_URL=url, PLAUDIT_QUEUE_REDIS_URL=None) is None
    refused = refused_address(url, wrong)
    said = redis.refusal(REDIS_URL=url, PLAUDIT_QUEUE_REDIS_URL=refused)
    assert said is not None
    assert said.startswith("Redis refuses the login or the database (")
    assert said.endswith("): check PLAUDIT_QUEUE_REDIS_URL")
    assert redis.refusal(REDIS_URL="redis://127.0.0.1:1/0") is None, "it may come"


def refused_address(url: str, wrong: str) -> str:
    """The address of the same server, with another password or a database that it does not have."""
    parts = urlsplit(url)
    if wrong == "database":
        return parts._replace(path="/9999").geturl()
    return parts._replace(netloc=f":not-the-password@{parts.hostname}:{parts.port}").geturl()
