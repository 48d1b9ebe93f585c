"""Rate limits: one for all processes by Redis, and without it one for each."""

import pytest

from tenants import redis as tenants_redis
from tenants import throttle
from tenants.throttle import TooMany, per_minute


@pytest.fixture(params=["redis", "no redis"])
def redis(request: pytest.FixtureRequest, connected: None) -> str:
    if request.param == "no redis":
        request.getfixturevalue("no_redis")
    return str(request.param)


def test_above_its_limit_a_caller_is_refused_and_others_are_not(redis: str, tenant: str) -> None:
    states = [throttle.hit("login", per_minute(2), tenant, "ada") for _ in range(3)]
    assert [(state.is_allowed, state.remaining) for state in states] == [(True, 1), (True, 0), (False, 0)]
    for name, caller in (("login", "bob"), ("reset", "ada")):
        assert throttle.hit(name, per_minute(2), tenant, caller).is_allowed, "a limit of its own"


def test_a_refusal_says_when_to_try_again(redis: str, tenant: str) -> None:
    assert throttle.require("login", per_minute(1), tenant, detail="Too many logins").is_allowed
    with pytest.raises(TooMany, match="Too many logins") as refused:
        throttle.require("login", per_minute(1), tenant, detail="Too many logins")
    wait_s = refused.value.retry_after_s
    assert wait_s is not None
    assert 1 <= wait_s <= 60
    assert refused.value.headers == {
        "RateLimit": f'"login";r=0;t={wait_s}',
        "RateLimit-Policy": '"login";q=1;w=60',
    }


def test_no_name_of_a_caller_is_in_a_key(connected: None) -> None:
    throttle.hit("login", per_minute(5), "canary-tenant", "canary@example.org")
    names = [name.decode() for name in tenants_redis.boards().redis.scan_iter(f"{throttle.PREFIX}*")]
    assert names
    assert not any("canary" in name for name in names)


def test_identifiers_are_compared_one_by_one(redis: str, tenant: str) -> None:
    assert throttle.hit("login", per_minute(1), tenant, "a", "bc").is_allowed
    assert throttle.hit("login", per_minute(1), tenant, "ab", "c").is_allowed
