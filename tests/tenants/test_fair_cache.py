"""Memory with bounds for groups: whoever has too many entries loses their own oldest ones."""

from tenants.fair_cache import FairCache, Groups


def by_tenant(key: str, _value: int) -> Groups:
    """At most two entries of a tenant, by the first letter, and three in all."""
    return ((key[0],), 2), ((), 3)


def test_whoever_has_too_many_entries_loses_the_oldest_of_their_own() -> None:
    cache = FairCache(by_tenant)
    for number, key in enumerate(("b1", "a1", "a2", "a3")):
        cache.put(key, number)
    assert [cache.get(key) for key in ("b1", "a1", "a2", "a3")] == [0, None, 2, 3]
    cache.put("c1", 4)
    assert "b1" not in cache, "the oldest of all"
    assert len(cache) == 3


def test_an_entry_that_is_put_again_is_the_newest() -> None:
    cache = FairCache(by_tenant)
    for number, key in enumerate(("a1", "a2", "a1", "a3")):
        cache.put(key, number)
    assert [cache.get(key) for key in ("a1", "a2", "a3")] == [2, None, 3]


def test_what_is_forgotten_counts_no_longer() -> None:
    cache = FairCache(by_tenant)
    cache.put("a1", 1)
    cache.forget("a1")
    cache.forget("never kept")
    assert (len(cache), cache._arrivals) == (0, {})
    cache.put("a1", 1)
    cache.clear()
    assert (cache.get("a1"), cache._arrivals) == (None, {})
