"""Addresses of servers with options in their query, as the drivers read them."""

import pytest

from app.address_checks import is_for_postgresql, is_for_redis


@pytest.mark.parametrize(
    ("query", "is_known"),
    [
        ("sslmode=require&application_name=x", True),
        ("host=/var/run/postgresql", True),
        ("host=a,b&port=1,2&target_session_attrs=read-write", True),
        ("bogus=1", False),
        ("host=a&port=b", False),
    ],
)
def test_postgresql_knows_its_options(query: str, is_known: bool) -> None:
    assert is_for_postgresql(f"postgresql://me@/db?{query}") is is_known


@pytest.mark.parametrize(
    ("address", "is_known"),
    [
        ("redis://host/0?protocol=3", True),
        ("unix:///run/redis.sock?db=1", True),
        ("rediss://host/0?ssl_cert_reqs=required", True),
        ("rediss://host/0?ssl_cert_reqs=x", False),
        ("redis://host/0?socket_timeout=abc", False),
        ("redis://host/0?bogus=1", False),
        ("unix:///run/redis.sock?db=x", False),
    ],
)
def test_redis_knows_its_options(address: str, is_known: bool) -> None:
    assert is_for_redis(address) is is_known
