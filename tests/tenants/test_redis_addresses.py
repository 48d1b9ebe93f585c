import pytest

from tenants.redis_addresses import ClusterAddress, is_cluster, shown


@pytest.mark.parametrize(
    ("url", "nodes"),
    [
        ("redis+cluster://a:1,b:2,c:3", ["redis://a:1/0", "redis://b:2/0", "redis://c:3/0"]),
        ("redis+cluster://a", ["redis://a:6379/0"]),
        ("redis+cluster://:pass@a:1/", ["redis://:pass@a:1/0"]),
        ("redis+cluster://user:p%40ss@a:1,b:2", ["redis://user:p%40ss@a:1/0", "redis://user:p%40ss@b:2/0"]),
        ("redis+cluster://[::1]:7000,[fe80::2]", ["redis://[::1]:7000/0", "redis://[fe80::2]:6379/0"]),
        ("rediss+cluster://a:1?ssl_ca_certs=/ca.pem", ["rediss://a:1/0?ssl_ca_certs=/ca.pem"]),
    ],
)
def test_a_cluster_s_address_names_some_of_its_nodes(url: str, nodes: list[str]) -> None:
    address = ClusterAddress.parse(url)
    assert is_cluster(url)
    assert [address.url_of(*node) for node in address.nodes] == nodes


@pytest.mark.parametrize("url", ["redis+cluster://", "redis+cluster://a:0", "redis+cluster://a:1,,b", "redis://a:1"])
def test_what_names_no_nodes_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="not an address"):
        ClusterAddress.parse(url)


def test_an_address_of_a_server_is_no_cluster_s() -> None:
    assert not is_cluster("redis://a:1/0")


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis://user:secret@a:1/0", "a:1"),
        ("rediss://:secret@[::1]", "[::1]:6379"),
        ("unix://:secret@/run/redis.sock?db=1", "/run/redis.sock"),
        ("redis+cluster://user:secret@a:1,[::1]", "a:1,[::1]:6379"),
    ],
)
def test_an_address_is_shown_without_its_login(url: str, said: str) -> None:
    assert shown(url) == said
